package providertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

func testDial(t *testing.T, h Harness) {
	ctx := t.Context()
	sb := sandbox(t, h)
	start(t, sb, provider.Command{Shell: "nc -ll -p 8080 -e cat"})
	var conn net.Conn
	wait(t, "the server", func() (ok bool) {
		var err error
		conn, err = sb.Dial(ctx, "tcp", "localhost:8080")
		return err == nil
	})
	defer conn.Close()

	t.Run("echo", func(t *testing.T) {
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 5)
		if _, err := io.ReadFull(conn, buf); err != nil || string(buf) != "hello" {
			t.Errorf("%q, %v", buf, err)
		}
	})
	t.Run("half-close", func(t *testing.T) {
		conn, err := sb.Dial(ctx, "tcp", ":8080")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		data := pattern(3 << 20)
		go func() {
			conn.Write(data)
			conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		got, err := io.ReadAll(conn)
		if err != nil || len(got) != len(data) || string(got) != string(data) {
			t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
		}
	})
	t.Run("deadline", func(t *testing.T) {
		conn, err := sb.Dial(ctx, "tcp", "127.0.0.1:8080")
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
		var timeout net.Error
		if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("got %v", err)
		}
	})
	t.Run("refused", func(t *testing.T) {
		_, err := sb.Dial(ctx, "tcp", "localhost:8081")
		if err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("got %v", err)
		}
		_, err = sb.Dial(ctx, "udp", "localhost:1")
		wantInvalid(t, err, "network")
		_, err = sb.Dial(ctx, "tcp", "nonsense")
		wantInvalid(t, err, "address")
	})
}

func testLife(t *testing.T, h Harness) {
	ctx := t.Context()

	t.Run("suspend and resume", func(t *testing.T) {
		t.Parallel()
		p := h.New(t)
		sb := create(t, p, provider.Spec{Image: h.Image})
		write(t, sb, "kept", "still here")
		begin := time.Now()
		if err := sb.Suspend(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("suspending took %v", took)
		}
		if info, err := sb.Info(ctx); err != nil || info.State != provider.StateSuspended {
			t.Errorf("%+v, %v", info, err)
		}
		if err := sb.Suspend(ctx); err != nil {
			t.Errorf("again: %v", err)
		}
		for range 2 {
			if err := sb.Resume(ctx); err != nil {
				t.Fatal(err)
			}
		}
		if info, err := sb.Info(ctx); err != nil || info.State != provider.StateRunning {
			t.Errorf("%+v, %v", info, err)
		}
		wantString(t, "files", read(t, sb, "kept"), "still here")

		// Any operation resumes, and many at once resume once.
		if err := sb.Suspend(ctx); err != nil {
			t.Fatal(err)
		}
		other, err := h.New(t).Open(ctx, sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			sb := []provider.Sandbox{sb, other}[i%2]
			wg.Go(func() {
				r, err := sb.Exec(ctx, provider.Command{Shell: "cat kept"})
				if err != nil || string(r.Stdout) != "still here" {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		wg.Wait()
	})

	t.Run("suspended in the middle of a command", func(t *testing.T) {
		t.Parallel()
		sb := sandbox(t, h)
		var once sync.Once
		_, err := sb.Exec(ctx, provider.Command{Shell: "echo; sleep 1000", Timeout: patience, OnOutput: func(provider.Stream, []byte) {
			once.Do(func() {
				go func() {
					if err := sb.Suspend(ctx); err != nil {
						t.Error(err)
					}
				}()
			})
		}})
		wantIs(t, err, provider.ErrSessionLost)
		wantString(t, "afterwards", run(t, sb, "echo alive"), "alive\n")
	})

	t.Run("destroy", func(t *testing.T) {
		t.Parallel()
		p := h.New(t)
		sb := create(t, p, provider.Spec{Image: h.Image})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if err := sb.Destroy(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		_, err := sb.Exec(ctx, provider.Command{Shell: "true"})
		wantIs(t, err, provider.ErrGone)
		_, err = sb.ReadFile(ctx, "x", provider.ReadOptions{})
		wantIs(t, err, provider.ErrGone)
		_, err = sb.Info(ctx)
		wantIs(t, err, provider.ErrGone)
		wantIs(t, sb.Resume(ctx), provider.ErrGone)
		wantIs(t, p.Destroy(ctx, sb.Name()), provider.ErrGone)
		_, err = p.Open(ctx, sb.Name())
		wantIs(t, err, provider.ErrGone)
	})

	t.Run("destroyed in the middle of a command", func(t *testing.T) {
		t.Parallel()
		p := h.New(t)
		sb := create(t, p, provider.Spec{Image: h.Image})
		other, err := h.New(t).Open(ctx, sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		var once sync.Once
		_, err = sb.Exec(ctx, provider.Command{Shell: "echo; sleep 1000", Timeout: patience, OnOutput: func(provider.Stream, []byte) {
			once.Do(func() {
				go func() {
					if err := other.Destroy(ctx); err != nil {
						t.Error(err)
					}
				}()
			})
		}})
		wantIs(t, err, provider.ErrSessionLost)
	})

	t.Run("a closed provider", func(t *testing.T) {
		t.Parallel()
		p := h.New(t)
		sb := create(t, p, provider.Spec{Image: h.Image})
		running := make(chan struct{})
		done := make(chan error, 1)
		go func() {
			_, err := sb.Exec(ctx, provider.Command{Shell: "echo; sleep 1000", Timeout: patience,
				OnOutput: func(provider.Stream, []byte) { close(running) }})
			done <- err
		}()
		<-running
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		wantIs(t, <-done, provider.ErrSessionLost)
		other, err := h.New(t).Open(ctx, sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		// A client that vanishes ends the foreground commands it has started.
		wait(t, "the end of the command", func() bool { return alive(t, other, "sleep 1000") == 0 })
	})

	t.Run("many at once", func(t *testing.T) {
		t.Parallel()
		p := h.New(t)
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				sb, err := p.Create(ctx, provider.Spec{Image: h.Image, Memory: 64 << 20})
				if err != nil {
					t.Error(err)
					return
				}
				defer func() {
					if err := sb.Destroy(context.Background()); err != nil {
						t.Error(err)
					}
				}()
				r, err := sb.Exec(ctx, provider.Command{Shell: fmt.Sprintf("echo %d > f; cat f", i)})
				if err != nil || string(r.Stdout) != fmt.Sprintln(i) {
					t.Errorf("%+v, %v", r, err)
				}
			})
		}
		wg.Wait()
	})
}

func testFind(t *testing.T, h Harness) {
	ctx := t.Context()
	p := h.New(t)
	name := provider.GenerateName()
	before := time.Now().Add(-time.Second)
	sb := create(t, p, provider.Spec{Name: name, Image: h.Image, TTL: time.Hour, Labels: map[string]string{"team": "a"}})

	check := func(t *testing.T, info provider.Info) {
		if info.Name != name || info.Image != h.Image || info.State != provider.StateRunning || info.Egress != provider.EgressNone ||
			info.Owner != provider.Self() || !info.OwnerAlive || info.Labels["team"] != "a" || info.Keep {
			t.Errorf("%+v", info)
		}
		if info.Created.Before(before) || info.Created.After(time.Now()) || info.Expires.Sub(info.Created) != time.Hour {
			t.Errorf("created %v, expires %v", info.Created, info.Expires)
		}
	}
	t.Run("info", func(t *testing.T) {
		info, err := sb.Info(ctx)
		if err != nil {
			t.Fatal(err)
		}
		check(t, info)
	})
	t.Run("list", func(t *testing.T) {
		list, err := h.New(t).List(ctx)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(info provider.Info) bool { return info.Name == name })
		if i < 0 {
			t.Fatal("not in the list")
		}
		check(t, list[i])
	})
	t.Run("open", func(t *testing.T) {
		other, err := h.New(t).Open(ctx, name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, sb, "from-one", "x")
		wantString(t, "the other's file", read(t, other, "from-one"), "x")
		_, err = p.Open(ctx, "cap-no-such-sandbox")
		wantIs(t, err, provider.ErrGone)
		_, err = p.Open(ctx, "bad name")
		wantInvalid(t, err, "name")
	})
	t.Run("sweep leaves what lives", func(t *testing.T) {
		kept := create(t, p, provider.Spec{Image: h.Image, Keep: true})
		report, err := h.New(t).Sweep(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range report.Sandboxes {
			if n == name || n == kept.Name() {
				t.Errorf("swept %s", n)
			}
		}
		wantString(t, "the sandbox", run(t, sb, "echo alive"), "alive\n")
	})
	t.Run("time to live", func(t *testing.T) {
		short := create(t, p, provider.Spec{Image: h.Image, TTL: 3 * time.Second})
		wait(t, "its end", func() bool {
			info, err := short.Info(ctx)
			return errors.Is(err, provider.ErrGone) || err == nil && info.State == provider.StateDead
		})
		_, err := short.Exec(ctx, provider.Command{Shell: "true"})
		wantIs(t, err, provider.ErrGone)
		// Another sweep may have been quicker, so the report is not asked.
		if _, err := p.Sweep(ctx); err != nil {
			t.Fatal(err)
		}
		wantIs(t, p.Destroy(ctx, short.Name()), provider.ErrGone)
	})
}
