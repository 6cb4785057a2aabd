package docker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
)

// The connections to the engine are cut, or nothing passes any more, behind so
// many bytes of a create.
func TestFaultCreateCut(t *testing.T) {
	t.Parallel()
	api := engine(t)
	x := newProxy(t)
	p := newProvider(t, docker.Config{Endpoint: x.endpoint})
	create(t, p, small("")) // the agent's store is known from now on
	x.arm(requests, -1, false)
	sb := create(t, p, small(""))
	request, answer := x.bytes()
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	const points = 9
	var failed []string
	for i := range int64(2 * points) {
		all, direction := request, requests
		if i%2 == 1 {
			all, direction = answer, answers
		}
		// Also the first byte and one behind the last.
		at := 1 + i/2*all/(points-1)
		name := provider.GenerateName()
		x.arm(direction, at, false)
		sb, err := p.Create(t.Context(), small(name))
		x.arm(direction, -1, false)
		if err == nil {
			// The cut may have come after the last word, and the session is made anew.
			run(t, sb, "true")
			if err := sb.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		} else if !isOne(err, provider.ErrUnreachable, provider.ErrSessionLost) {
			t.Errorf("cut behind byte %d of %d: %v", at, all, err)
		}
		failed = append(failed, name)
	}
	for _, name := range failed {
		until(t, "the end of "+name, 2*time.Minute, func() bool { return len(leftAt(t, api, provider.LabelName+"="+name)) == 0 })
	}
}

// Nothing passes any more in the middle of a create: it keeps its deadline, and
// what it left is removed once it can be.
func TestFaultCreateStalls(t *testing.T) {
	t.Parallel()
	api := engine(t)
	var wg sync.WaitGroup
	for i := range int64(6) {
		wg.Go(func() {
			x := newProxy(t)
			p := newProvider(t, docker.Config{Endpoint: x.endpoint})
			name := provider.GenerateName()
			x.arm(answers, 200+i*1500, true)
			// More than a create takes, also on a busy machine, so that what is
			// measured is the stall.
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
			defer cancel()
			begin := time.Now()
			sb, err := p.Create(ctx, small(name))
			if late := time.Since(begin) - 4*time.Second; late > afterDeadline {
				t.Errorf("create returned %v after its deadline", late)
			}
			x.arm(answers, -1, false)
			x.cut()
			if err == nil {
				if err := sb.Destroy(t.Context()); err != nil {
					t.Error(err)
				}
			} else if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("stalled behind byte %d: %v", 200+i*1500, err)
			}
			until(t, "the end of "+name, 2*time.Minute, func() bool { return len(leftAt(t, api, provider.LabelName+"="+name)) == 0 })
		})
	}
	wg.Wait()
}

// The connections are cut in the middle of operations, and of the reconnecting.
// No operation is done twice, and each finds its way back.
func TestFaultSessionCut(t *testing.T) {
	t.Parallel()
	x := newProxy(t)
	p := newProvider(t, docker.Config{Endpoint: x.endpoint})
	sb := create(t, p, small(""))
	server, err := sb.Start(t.Context(), provider.Command{Shell: "exec sleep 100000"})
	if err != nil {
		t.Fatal(err)
	}
	// One round is an operation, that what follows it has to make a connection
	// for, and another.
	round := func(i int) (failed int) {
		for n := range 2 {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			line := fmt.Sprintf("echo %d-%d >> ran; echo done", i, n)
			r, err := sb.Exec(ctx, provider.Command{Shell: line})
			cancel()
			if err != nil {
				failed++
				if !isOne(err, provider.ErrUnreachable, provider.ErrSessionLost) {
					t.Errorf("round %d: %v", i, err)
				}
			} else if string(r.Stdout) != "done\n" {
				t.Errorf("round %d: %+v", i, r)
			}
			if n == 0 {
				x.cut()
			}
		}
		return failed
	}
	x.arm(requests, -1, false)
	round(0)
	request, answer := x.bytes()
	const points = 10
	failed := 0
	for i := range int64(2 * points) {
		all, direction := request, requests
		if i%2 == 1 {
			all, direction = answer, answers
		}
		x.arm(direction, 1+i/2*all/points, false)
		failed += round(int(i + 1))
		x.arm(direction, -1, false)
	}
	t.Logf("%d operations failed", failed)
	seen := map[string]int{}
	for line := range strings.Lines(run(t, sb, "cat ran")) {
		if seen[line]++; seen[line] > 1 {
			t.Errorf("%q ran twice", line)
		}
	}
	if info, err := server.Info(t.Context()); err != nil || !info.Running {
		t.Errorf("the background process: %+v, %v", info, err)
	}
	until(t, "the end of cut commands", 2*time.Minute, func() bool {
		list, err := sb.Processes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 1
	})
}

// One runner suspends, resumes and destroys while another executes.
func TestFaultTwoRunners(t *testing.T) {
	t.Parallel()
	sb := create(t, newProvider(t, docker.Config{}), small(""))
	other, err := newProvider(t, docker.Config{}).Open(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ended := make(chan struct{})
	for i := range 3 {
		wg.Go(func() {
			for n := 0; ; n++ {
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
				r, err := sb.Exec(ctx, provider.Command{Shell: fmt.Sprintf("echo %d-%d >> ran; echo done", i, n)})
				cancel()
				select {
				case <-ended:
					if isOne(err, provider.ErrGone) {
						return
					}
				default:
				}
				if err != nil && !isOne(err, provider.ErrSessionLost, provider.ErrGone) || err == nil && string(r.Stdout) != "done\n" {
					t.Errorf("%+v, %v", r, err)
				}
				if errors.Is(err, provider.ErrGone) {
					<-ended
				}
			}
		})
	}
	for i := range 4 {
		if err := other.Suspend(t.Context()); err != nil {
			t.Errorf("suspend: %v", err)
		}
		if i%2 == 0 {
			if err := other.Resume(t.Context()); err != nil && !errors.Is(err, provider.ErrSessionLost) {
				t.Errorf("resume: %v", err)
			}
		}
		run(t, other, "test ! -e ran || ! sort ran | uniq -d | grep .")
	}
	err = other.Destroy(t.Context())
	close(ended)
	if err != nil {
		t.Errorf("destroy: %v", err)
	}
	wg.Wait()
	if l := left(t, sb.Name()); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}

// Several runners replace the sandbox of one name at once: whoever wins, there is
// at most one in the end, whole, and of the others nothing.
func TestFaultReplaceRaced(t *testing.T) {
	t.Parallel()
	spec := small(provider.GenerateName())
	spec.Replace = true
	p := newProvider(t, docker.Config{})
	var wg sync.WaitGroup
	for range 4 {
		p := newProvider(t, docker.Config{})
		wg.Go(func() {
			for range 2 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				_, err := p.Create(ctx, spec)
				cancel()
				// Another's replace may have come at any moment of this create.
				if err != nil && !isOne(err, provider.ErrExists, provider.ErrGone, provider.ErrSessionLost, provider.ErrRefused) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	sb, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, sb, "ls -A; echo whole"); got != "whole\n" {
		t.Errorf("got %q", got)
	}
	until(t, "one container and two volumes", 10*time.Second, func() bool { return len(left(t, spec.Name)) == 3 })
	if err := sb.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	if l := left(t, spec.Name); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
}
