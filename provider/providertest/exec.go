package providertest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/capybara-hq/capyrun/provider"
)

func testExec(t *testing.T, h Harness) {
	sb := sandbox(t, h)
	ctx := t.Context()

	t.Run("results", func(t *testing.T) {
		for _, c := range []struct {
			cmd            provider.Command
			code           int
			signal         string
			stdout, stderr string
		}{
			{cmd: provider.Command{Shell: "true"}},
			{cmd: provider.Command{Shell: "false"}, code: 1},
			{cmd: provider.Command{Shell: "exit 255"}, code: 255},
			{cmd: provider.Command{Shell: "echo out; echo err >&2"}, stdout: "out\n", stderr: "err\n"},
			{cmd: provider.Command{Shell: "kill -9 $$"}, code: -1, signal: "SIGKILL"},
			{cmd: provider.Command{Shell: "kill -TERM $$"}, code: -1, signal: "SIGTERM"},
			{cmd: provider.Command{Args: []string{"echo", "a  b", "$HOME", "*", ""}}, stdout: "a  b $HOME * \n"},
			{cmd: provider.Command{Args: []string{"/bin/sh", "-c", "echo $0 $1", "x", "y"}}, stdout: "x y\n"},
			{cmd: provider.Command{Shell: "pwd", Dir: "/tmp"}, stdout: "/tmp\n"},
			{cmd: provider.Command{Shell: "mkdir -p sub && cd sub && pwd", Dir: "."}, stdout: "/workspace/sub\n"},
			{cmd: provider.Command{Shell: "pwd", Dir: "sub"}, stdout: "/workspace/sub\n"},
			{cmd: provider.Command{Shell: `echo "$A"`, Env: map[string]string{"A": "x y\nz"}}, stdout: "x y\nz\n"},
			{cmd: provider.Command{Shell: "printf 'a\\0b\\377'"}, stdout: "a\x00b\xff"},
			{cmd: provider.Command{Shell: "echo ünï"}, stdout: "ünï\n"},
		} {
			r := exec(t, sb, c.cmd)
			if r.ExitCode != c.code || r.Signal != c.signal || string(r.Stdout) != c.stdout || string(r.Stderr) != c.stderr || r.Truncated || r.TimedOut || r.OutOfMemory {
				t.Errorf("%s: got %+v (stdout %q, stderr %q)", c.cmd.String(), r, r.Stdout, r.Stderr)
			}
			if r.Duration <= 0 || r.Duration > patience {
				t.Errorf("%s: took %v", c.cmd.String(), r.Duration)
			}
		}
	})

	t.Run("not started", func(t *testing.T) {
		run(t, sb, "echo text > notprogram; echo '\x01\x02' > noexec; chmod +x noexec")
		for _, c := range []struct {
			cmd  provider.Command
			says string
		}{
			{provider.Command{Args: []string{"no-such-program"}}, "no-such-program"},
			{provider.Command{Args: []string{"/no/such/program"}}, "/no/such/program"},
			{provider.Command{Args: []string{"./notprogram"}}, "notprogram"},
			{provider.Command{Args: []string{"/workspace"}}, "/workspace"},
			{provider.Command{Args: []string{"/workspace/noexec"}}, "noexec"},
			{provider.Command{Shell: "true", Dir: "/no/such/dir"}, "/no/such/dir"},
			{provider.Command{Shell: "true", Dir: "/workspace/notprogram"}, "notprogram"},
		} {
			_, err := sb.Exec(ctx, c.cmd)
			wantIs(t, err, provider.ErrNotStarted)
			if err != nil && (!strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), sb.Name())) {
				t.Errorf("%v does not name %q and the sandbox", err, c.says)
			}
		}
	})

	t.Run("refused", func(t *testing.T) {
		for _, c := range []struct {
			field string
			cmd   provider.Command
		}{
			{"cmd", provider.Command{}},
			{"cmd", provider.Command{Shell: "x", Args: []string{"y"}}},
			{"cmd", provider.Command{Args: []string{""}}},
			{"cmd", provider.Command{Shell: "a\x00b"}},
			{"cwd", provider.Command{Shell: "true", Dir: "a\x00b"}},
			{"env", provider.Command{Shell: "true", Env: map[string]string{"1A": ""}}},
			{"tag", provider.Command{Shell: "true", Tag: "a b"}},
			{"timeout", provider.Command{Shell: "true", Timeout: -1}},
			{"max_output", provider.Command{Shell: "true", MaxOutput: -1}},
		} {
			_, err := sb.Exec(ctx, c.cmd)
			wantInvalid(t, err, c.field)
		}
	})

	t.Run("at once", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				r, err := sb.Exec(ctx, provider.Command{Shell: fmt.Sprintf("echo %d; exit %d", i, i)})
				if err != nil || r.ExitCode != i || string(r.Stdout) != fmt.Sprintln(i) {
					t.Errorf("command %d: %+v, %v", i, r, err)
				}
			})
		}
		wg.Wait()
	})

	t.Run("bash", func(t *testing.T) {
		sb := create(t, h.New(t), provider.Spec{Image: h.BashImage})
		wantString(t, "a bash array", run(t, sb, `a=(x y z); echo "${a[1]}"`), "y\n")
	})
}

func testOutput(t *testing.T, h Harness) {
	sb := sandbox(t, h)

	t.Run("cap", func(t *testing.T) {
		for _, c := range []struct {
			line           string
			max            int64
			stdout, stderr string
			truncated      bool
		}{
			{"printf 12345", 5, "12345", "", false},
			{"printf 123456", 5, "12345", "", true},
			{"printf abc >&2; sleep 0.2; printf 12345", 5, "12", "abc", true},
			{"printf 12345; sleep 0.2; printf abc >&2", 5, "12345", "", true},
			// é is two bytes; the cap falls into the middle of the second.
			{"printf éé", 3, "é", "", true},
			{"printf é", 1, "", "", true},
			{"printf '\\377\\377\\377'", 2, "\xff\xff", "", true},
		} {
			r := exec(t, sb, provider.Command{Shell: c.line, MaxOutput: c.max})
			if string(r.Stdout) != c.stdout || string(r.Stderr) != c.stderr || r.Truncated != c.truncated || r.ExitCode != 0 {
				t.Errorf("%s with a cap of %d: got %q, %q, truncated %v, status %d", c.line, c.max, r.Stdout, r.Stderr, r.Truncated, r.ExitCode)
			}
		}
	})

	t.Run("default cap", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "yes é | head -c 3000000; exit 7"})
		if n := int64(len(r.Stdout)); n > provider.DefaultMaxOutput || n < provider.DefaultMaxOutput-3 || !r.Truncated || r.ExitCode != 7 {
			t.Errorf("%d bytes, truncated %v, status %d", n, r.Truncated, r.ExitCode)
		}
		if !utf8.Valid(r.Stdout) {
			t.Error("a character was split")
		}
	})

	t.Run("exact", func(t *testing.T) {
		const size = 20 << 20
		r := exec(t, sb, provider.Command{Shell: fmt.Sprintf("head -c %d /dev/urandom | tee data; sha256sum data >&2", size), MaxOutput: 2 * size})
		if want := fmt.Sprintf("%x  data\n", sha256.Sum256(r.Stdout)); string(r.Stderr) != want || len(r.Stdout) != size || r.Truncated {
			t.Errorf("%d bytes with digest %s, the sandbox has %s", len(r.Stdout), want, r.Stderr)
		}
	})

	t.Run("streamed", func(t *testing.T) {
		// The command waits for a file that the callback makes, so this ends only
		// if output arrives while the command runs.
		var got, gotErr bytes.Buffer
		released := false
		r := exec(t, sb, provider.Command{
			Shell:     "echo one; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo two; echo err >&2; head -c 100000 /dev/zero",
			MaxOutput: 6, Timeout: patience,
			OnOutput: func(s provider.Stream, data []byte) {
				if s == provider.Stderr {
					gotErr.Write(data)
					return
				}
				got.Write(data)
				if !released && strings.HasPrefix(got.String(), "one\n") {
					released = true
					if err := sb.WriteFile(t.Context(), "/tmp/go", strings.NewReader(""), provider.WriteOptions{}); err != nil {
						t.Error(err)
					}
				}
			},
		})
		wantString(t, "streamed", got.String(), "one\ntwo\n"+strings.Repeat("\x00", 100000))
		wantString(t, "streamed stderr", gotErr.String(), "err\n")
		if len(r.Stdout)+len(r.Stderr) != 6 || !r.Truncated || r.TimedOut {
			t.Errorf("kept %q and %q, truncated %v", r.Stdout, r.Stderr, r.Truncated)
		}
	})

	t.Run("a slow reader slows the command", func(t *testing.T) {
		// Ten megabytes do not fit into any buffer on the way; what the command
		// has written while the reader stands still is bounded.
		stand := make(chan struct{})
		var once sync.Once
		done := make(chan struct{})
		var total int
		go func() {
			defer close(done)
			r, err := sb.Exec(t.Context(), provider.Command{
				Shell: "i=0; while [ $i -lt 160 ]; do head -c 65536 /dev/zero; i=$((i+1)); echo $i > /tmp/written; done", MaxOutput: 1, Timeout: patience,
				OnOutput: func(_ provider.Stream, data []byte) {
					once.Do(func() { <-stand })
					total += len(data)
				},
			})
			if err != nil || !r.OK() {
				t.Errorf("%+v, %v", r, err)
			}
		}()
		var last string
		still := 0
		wait(t, "the command to stand still", func() bool {
			now := run(t, sb, "cat /tmp/written 2>/dev/null || true; sleep 0.05")
			if now == last && now != "" {
				still++
			} else {
				still = 0
			}
			last = now
			return still >= 5
		})
		if strings.TrimSpace(last) == "160" {
			t.Error("the command ran to its end while nobody read")
		}
		close(stand)
		<-done
		if total != 160*65536 {
			t.Errorf("%d bytes arrived", total)
		}
	})
}

func testStdin(t *testing.T, h Harness) {
	sb := sandbox(t, h)

	t.Run("none", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "cat; echo end", Timeout: patience})
		wantString(t, "output", r.Stdout, "end\n")
	})
	t.Run("empty", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "cat; echo end", Stdin: strings.NewReader(""), Timeout: patience})
		wantString(t, "output", r.Stdout, "end\n")
	})
	t.Run("exact", func(t *testing.T) {
		data := pattern(20 << 20)
		r := exec(t, sb, provider.Command{Shell: "sha256sum", Stdin: bytes.NewReader(data), Timeout: patience})
		wantString(t, "digest", r.Stdout, fmt.Sprintf("%x  -\n", sha256.Sum256(data)))
	})
	t.Run("unread", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "echo done", Stdin: bytes.NewReader(pattern(20 << 20)), Timeout: patience})
		if !r.OK() || string(r.Stdout) != "done\n" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("closed early", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "exec <&-; echo done", Stdin: bytes.NewReader(pattern(1 << 20)), Timeout: patience})
		if !r.OK() || string(r.Stdout) != "done\n" {
			t.Errorf("%+v", r)
		}
	})
	t.Run("a reader that never ends", func(t *testing.T) {
		r, w := io.Pipe()
		defer w.Close()
		res := exec(t, sb, provider.Command{Shell: "echo done", Stdin: r, Timeout: patience})
		if !res.OK() || string(res.Stdout) != "done\n" {
			t.Errorf("%+v", res)
		}
	})
	t.Run("a conversation", func(t *testing.T) {
		r, w := io.Pipe()
		heard := make(chan string, 10)
		go func() {
			for range 2 {
				io.WriteString(w, "ping\n")
				<-heard
			}
			w.Close()
		}()
		res := exec(t, sb, provider.Command{Shell: "while read x; do echo pong $x; done; echo bye", Stdin: r, Timeout: patience,
			OnOutput: func(_ provider.Stream, data []byte) { heard <- string(data) }})
		wantString(t, "output", res.Stdout, "pong ping\npong ping\nbye\n")
	})
	t.Run("a reader that fails", func(t *testing.T) {
		broken := errors.New("the disk is on fire")
		_, err := sb.Exec(t.Context(), provider.Command{Shell: "cat", Stdin: io.MultiReader(strings.NewReader("x"), failing{broken}), Timeout: patience})
		wantIs(t, err, broken)
	})
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// trees are command lines that leave processes "sleep MARK" behind in every
// way that is known; all of them run until they are killed.
var trees = map[string]string{
	"child":               "sleep MARK",
	"children":            "sleep MARK & sleep MARK & wait",
	"pipeline":            "sleep MARK | sleep MARK | sleep MARK",
	"grandchild":          "sh -c 'sh -c \"sleep MARK; true\"; true'; true",
	"deaf":                "trap '' TERM INT HUP QUIT; sleep MARK; sleep MARK",
	"stopped":             "sleep MARK & kill -STOP $!; wait",
	"new session":         "setsid sleep MARK & sleep MARK",
	"double fork":         "(sleep MARK &) ; sleep MARK",
	"daemon":              "(setsid sh -c 'sleep MARK & sleep MARK' </dev/null >/dev/null 2>&1 &) ; sleep MARK",
	"without environment": "(env -i setsid sleep MARK </dev/null >/dev/null 2>&1 &) ; sleep MARK",
	"busy":                "sh -c 'while :; do :; done' MARK",
	"fork loop":           "while :; do sleep MARK & sleep 0.01; done",
}

func testEnd(t *testing.T, h Harness) {
	ctx := t.Context()
	sb := sandbox(t, h)

	t.Run("a background child does not hold it", func(t *testing.T) {
		begin := time.Now()
		r := exec(t, sb, provider.Command{Shell: "sleep 4711 & echo started", Timeout: patience})
		if !r.OK() || string(r.Stdout) != "started\n" {
			t.Errorf("%+v", r)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("took %v", took)
		}
		if alive(t, sb, "sleep 4711") != 1 {
			t.Error("the background child was killed")
		}
		if _, err := sb.KillAll(ctx); err != nil {
			t.Error(err)
		}
	})

	t.Run("a late writer", func(t *testing.T) {
		// Within the drain time the output of a child still counts.
		r := exec(t, sb, provider.Command{Shell: "(sleep 0.05; echo late) &", Timeout: patience})
		wantString(t, "output", r.Stdout, "late\n")
	})

	t.Run("orphans by the thousand", func(t *testing.T) {
		// Each ends after its parent, so that the first process has to collect it,
		// while the status of other commands comes in.
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				r, err := sb.Exec(ctx, provider.Command{Shell: "i=0; while [ $i -lt 300 ]; do (: & exit 9) ; i=$((i+1)); done; exit 200", Timeout: patience})
				if err != nil || r.ExitCode != 200 {
					t.Errorf("%+v, %v", r, err)
				}
			})
			wg.Go(func() {
				for i := range 25 {
					r, err := sb.Exec(ctx, provider.Command{Shell: fmt.Sprintf("exit %d", i), Timeout: patience})
					if err != nil || r.ExitCode != i {
						t.Errorf("command %d: %+v, %v", i, r, err)
					}
				}
			})
		}
		wg.Wait()
		wait(t, "no zombie", func() bool {
			return run(t, sb, "cat /proc/[0-9]*/stat 2>/dev/null | sed 's/.*) //' | grep -c ^Z || true") == "0\n"
		})
	})

	i := 50000
	for name, line := range trees {
		i++
		mark := fmt.Sprint(i)
		line = strings.ReplaceAll(line, "MARK", mark)
		t.Run("timeout/"+name, func(t *testing.T) {
			r := exec(t, sb, provider.Command{Shell: "echo partial; " + line, Timeout: 300 * time.Millisecond})
			if !r.TimedOut || r.OK() || string(r.Stdout) != "partial\n" {
				t.Errorf("%+v (stdout %q)", r, r.Stdout)
			}
			if n := alive(t, sb, mark); n != 0 {
				t.Errorf("%d processes are left", n)
			}
		})
		t.Run("cancel/"+name, func(t *testing.T) {
			cause := errors.New("never mind")
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			r, err := sb.Exec(ctx, provider.Command{Shell: "echo partial; " + line,
				OnOutput: func(provider.Stream, []byte) { time.AfterFunc(100*time.Millisecond, func() { cancel(cause) }) }})
			wantIs(t, err, cause)
			if r == nil || string(r.Stdout) != "partial\n" {
				t.Errorf("partial result: %+v", r)
			}
			if n := alive(t, sb, mark); n != 0 {
				t.Errorf("%d processes are left", n)
			}
		})
	}

	t.Run("cancelled before", func(t *testing.T) {
		ctx, cancel := context.WithCancel(ctx)
		cancel()
		_, err := sb.Exec(ctx, provider.Command{Shell: "touch /tmp/was-run"})
		wantIs(t, err, context.Canceled)
		wantString(t, "trace", run(t, sb, "ls /tmp/was-run 2>/dev/null || true"), "")
	})

	t.Run("others live on", func(t *testing.T) {
		proc, err := sb.Start(ctx, provider.Command{Shell: "sleep 4712"})
		if err != nil {
			t.Fatal(err)
		}
		exec(t, sb, provider.Command{Shell: "sleep 4713", Timeout: 50 * time.Millisecond})
		if info, err := proc.Info(ctx); err != nil || !info.Running {
			t.Errorf("%+v, %v", info, err)
		}
	})
}

func testKill(t *testing.T, h Harness) {
	ctx := t.Context()
	p := h.New(t)

	t.Run("tagged", func(t *testing.T) {
		sb := create(t, p, provider.Spec{Image: h.Image})
		other, err := h.New(t).Open(ctx, sb.Name())
		if err != nil {
			t.Fatal(err)
		}
		results := make(chan *provider.Result, 2)
		for range 2 {
			go func() {
				r, err := sb.Exec(ctx, provider.Command{Shell: "sleep 4721", Tag: "a"})
				if err != nil {
					t.Error(err)
				}
				results <- r
			}()
		}
		bystander, err := sb.Start(ctx, provider.Command{Shell: "sleep 4722", Tag: "b"})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "both commands", func() bool { return alive(t, sb, "sleep 4721") >= 2 })
		if n, err := other.Kill(ctx, "a", "no-such-tag"); n != 2 || err != nil {
			t.Errorf("killed %d, %v", n, err)
		}
		for range 2 {
			if r := <-results; r == nil || r.Signal != "SIGKILL" {
				t.Errorf("%+v", r)
			}
		}
		if n := alive(t, sb, "sleep 4721"); n != 0 {
			t.Errorf("%d are left", n)
		}
		if info, err := bystander.Info(ctx); err != nil || !info.Running {
			t.Errorf("another tag's process: %+v, %v", info, err)
		}
		if n, err := sb.Kill(ctx, "a"); n != 0 || err != nil {
			t.Errorf("again: killed %d, %v", n, err)
		}
		_, err = sb.Kill(ctx, "bad tag")
		wantInvalid(t, err, "tag")
	})

	t.Run("all", func(t *testing.T) {
		sb := create(t, p, provider.Spec{Image: h.Image})
		run(t, sb, "(setsid sleep 4731 >/dev/null 2>&1 </dev/null &)")
		if _, err := sb.Start(ctx, provider.Command{Shell: "sleep 4731"}); err != nil {
			t.Fatal(err)
		}
		if _, err := sb.KillAll(ctx); err != nil {
			t.Fatal(err)
		}
		if n := alive(t, sb, "sleep 4731"); n != 0 {
			t.Errorf("%d are left", n)
		}
	})

	t.Run("fork bomb", func(t *testing.T) {
		sb := create(t, p, provider.Spec{Image: h.Image, PIDs: 128})
		proc, err := sb.Start(ctx, provider.Command{Shell: "b() { b 4741 | b 4741 & }; while :; do b 4741; done"})
		if err != nil {
			t.Fatal(err)
		}
		wait(t, "the bomb to fill the limit", func() bool {
			s, err := sb.Stats(ctx)
			return err == nil && s.PIDs >= 100
		})
		if _, err := sb.KillAll(ctx); err != nil {
			t.Fatal(err)
		}
		if info, err := proc.Info(ctx); err != nil || info.Running {
			t.Errorf("%+v, %v", info, err)
		}
		wait(t, "an empty sandbox", func() bool {
			s, err := sb.Stats(ctx)
			return err == nil && s.PIDs < 64
		})
		wantString(t, "afterwards", run(t, sb, "echo alive"), "alive\n")
	})

	t.Run("fork bomb that times out", func(t *testing.T) {
		sb := create(t, p, provider.Spec{Image: h.Image, PIDs: 128})
		// The main process forks once, before the limit is reached: a shell that
		// cannot fork ends by itself.
		r := exec(t, sb, provider.Command{Shell: "b() { b | b & }; (while :; do b; done) 2>/dev/null & while :; do :; done", Timeout: 500 * time.Millisecond})
		if !r.TimedOut {
			t.Errorf("%+v", r)
		}
		wantString(t, "afterwards", run(t, sb, "echo alive"), "alive\n")
	})
}
