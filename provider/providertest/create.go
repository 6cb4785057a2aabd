package providertest

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

func testCreate(t *testing.T, h Harness) {
	p := h.New(t)
	ctx := t.Context()

	t.Run("refused", func(t *testing.T) {
		for _, c := range []struct {
			field string
			spec  provider.Spec
		}{
			{"name", provider.Spec{Name: "-x"}},
			{"name", provider.Spec{Name: "a b"}},
			{"name", provider.Spec{Name: "über"}},
			{"name", provider.Spec{Name: strings.Repeat("x", 102)}},
			{"name", provider.Spec{Name: "x-egress"}},
			{"name", provider.Spec{Name: "x-workspace"}},
			{"image", provider.Spec{Image: "bad image"}},
			{"image", provider.Spec{Image: "bücher"}},
			{"cpu", provider.Spec{CPU: -1}},
			{"cpu", provider.Spec{CPU: math.NaN()}},
			{"cpu", provider.Spec{CPU: math.Inf(1)}},
			{"cpu", provider.Spec{CPU: 1000}},
			{"memory", provider.Spec{Memory: -1}},
			{"memory", provider.Spec{Memory: 1024}},
			{"memory", provider.Spec{Memory: math.MaxInt64}},
			{"disk", provider.Spec{Disk: -1}},
			{"pids", provider.Spec{PIDs: -1}},
			{"egress", provider.Spec{Egress: "everything"}},
			{"allow_hosts", provider.Spec{AllowHosts: []string{"example.com"}}},
			{"env", provider.Spec{Env: map[string]string{"A=B": ""}}},
			{"env", provider.Spec{Env: map[string]string{"A": "\x00"}}},
			{"labels", provider.Spec{Labels: map[string]string{provider.LabelOwner: "me"}}},
			{"labels", provider.Spec{Labels: map[string]string{"k": "ü"}}},
			{"ttl", provider.Spec{TTL: -time.Second}},
		} {
			sb, err := p.Create(ctx, c.spec)
			wantInvalid(t, err, c.field)
			if err == nil {
				sb.Destroy(ctx)
			}
		}
	})

	t.Run("generated name", func(t *testing.T) {
		sb := create(t, p, provider.Spec{Image: h.Image})
		if !strings.HasPrefix(sb.Name(), provider.GeneratedPrefix) {
			t.Errorf("name %q", sb.Name())
		}
	})

	t.Run("exists and replace", func(t *testing.T) {
		spec := provider.Spec{Name: provider.GenerateName(), Image: h.Image}
		old := create(t, p, spec)
		run(t, old, "echo old > /workspace/f")
		_, err := p.Create(ctx, spec)
		wantIs(t, err, provider.ErrExists)
		wantString(t, "the old one", run(t, old, "cat f"), "old\n")

		spec.Replace = true
		sb := create(t, p, spec)
		wantString(t, "files", run(t, sb, "ls -A"), "")
		_, err = old.Exec(ctx, provider.Command{Shell: "true"})
		wantIs(t, err, provider.ErrGone)
		if err := old.Destroy(ctx); err != nil {
			t.Error(err)
		}
		wantString(t, "the new one after the old one's destroy", run(t, sb, "echo here"), "here\n")
	})

	t.Run("missing image", func(t *testing.T) {
		_, err := p.Create(ctx, provider.Spec{Image: "localhost:1/no/such:image"})
		if !errors.Is(err, provider.ErrImageNotFound) && !errors.Is(err, provider.ErrPullFailed) {
			t.Errorf("got %v", err)
		}
	})

	t.Run("the same name raced", func(t *testing.T) {
		spec := provider.Spec{Name: provider.GenerateName(), Image: h.Image}
		var won atomic.Int32
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				sb, err := h.New(t).Create(ctx, spec)
				if err != nil {
					wantIs(t, err, provider.ErrExists)
					return
				}
				won.Add(1)
				if _, err := sb.Exec(ctx, provider.Command{Shell: "true"}); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if won.Load() != 1 {
			t.Errorf("%d of 4 creates won", won.Load())
		}
		if err := p.Destroy(ctx, spec.Name); err != nil {
			t.Error(err)
		}
	})

	t.Run("cancelled", func(t *testing.T) {
		// The stages of a create lie some milliseconds apart; these delays fall
		// into all of them. Whichever it is, nothing may be left.
		cause := errors.New("changed my mind")
		for delay := time.Duration(0); delay <= 320*time.Millisecond; delay += 16 * time.Millisecond {
			ctx, cancel := context.WithCancelCause(ctx)
			timer := time.AfterFunc(delay, func() { cancel(cause) })
			spec := provider.Spec{Name: provider.GenerateName(), Image: h.Image}
			sb, err := p.Create(ctx, spec)
			timer.Stop()
			cancel(nil)
			if err == nil {
				if err := sb.Destroy(context.Background()); err != nil {
					t.Error(err)
				}
			} else {
				wantIs(t, err, cause)
			}
			wantIs(t, p.Destroy(context.Background(), spec.Name), provider.ErrGone)
		}
	})
}

func testContainer(t *testing.T, h Harness) {
	sb := create(t, h.New(t), provider.Spec{Image: h.Image, Env: map[string]string{"GREETING": "hello there"}})
	for _, c := range []struct{ what, line, want string }{
		{"working directory", "pwd", "/workspace\n"},
		{"user", "id -u; id -g", "1000\n1000\n"},
		{"environment", `echo "$HOME $LANG $GREETING"`, "/workspace C.UTF-8 hello there\n"},
		{"workspace", "stat -c '%u:%g' /workspace; touch f && echo ok", "1000:1000\nok\n"},
		{"root file system", "touch /x 2>/dev/null || echo read-only; touch /etc/x 2>/dev/null || echo read-only", "read-only\nread-only\n"},
		{"/tmp", "stat -c %a /tmp; echo 'echo runs' > /tmp/s; chmod +x /tmp/s; sh -c /tmp/s", "1777\nruns\n"},
		{"/tmp's mount", "m=$(grep ' /tmp ' /proc/mounts); for o in nosuid nodev; do case $m in *$o*) echo $o;; esac; done", "nosuid\nnodev\n"},
		{"/skills", "touch /skills/x 2>/dev/null || echo read-only; touch /opt/capybara/skills/x 2>/dev/null || echo root only", "read-only\nroot only\n"},
		{"the agent", "touch /opt/capyrun/x 2>/dev/null || echo read-only", "read-only\n"},
		{"capabilities", "grep -E 'Cap(Prm|Eff|Bnd|Amb)' /proc/self/status | tr -d '\\t'", "CapPrm:0000000000000000\nCapEff:0000000000000000\nCapBnd:0000000000000000\nCapAmb:0000000000000000\n"},
		{"new privileges", "grep NoNewPrivs /proc/self/status | tr -d '\\t'", "NoNewPrivs:1\n"},
		{"network", "ls /sys/class/net", "lo\n"},
		{"the first process's secrets", "cat /proc/1/environ 2>/dev/null || echo closed; ls /proc/1/fd >/dev/null 2>&1 || echo closed", "closed\nclosed\n"},
		{"session and group", "cut -d' ' -f5,6 /proc/$$/stat | { read g s; [ $g = $$ ] && [ $s = $$ ] && echo own; }", "own\n"},
		// A zombie with another parent than the first process is that parent's.
		{"zombies", `zombies() { for s in $(grep -l '^State:.Z' /proc/[0-9]*/status 2>/dev/null); do grep -l '^PPid:.1$' $s 2>/dev/null; done; }
			for i in 1 2 3 4 5 6 7 8; do (sh -c 'true &' &); done
			for i in 1 2 3 4 5 6 7 8 9 10; do [ "$(zombies)" ] || break; sleep 0.1; done
			zombies | wc -l | tr -d ' '`, "0\n"},
	} {
		t.Run(c.what, func(t *testing.T) {
			wantString(t, c.line, run(t, sb, c.line), c.want)
		})
	}

	t.Run("the agent's limits", func(t *testing.T) {
		sb := create(t, h.New(t), provider.Spec{Image: h.BashImage})
		line := `prlimit --version >/dev/null && echo there
prlimit --pid 1 --nofile=3:3 2>/dev/null || echo refused
ulimit -n 99 && ulimit -n`
		wantString(t, line, run(t, sb, line), "there\nrefused\n99\n")
	})

	t.Run("an image without anything", func(t *testing.T) {
		sb := create(t, h.New(t), provider.Spec{Image: h.BareImage})
		_, err := sb.Exec(t.Context(), provider.Command{Shell: "true"})
		wantIs(t, err, provider.ErrNotStarted)
		if err != nil && !strings.Contains(err.Error(), "neither bash nor sh") {
			t.Errorf("%v does not speak of the shell", err)
		}
		// The agent itself is the one program that is surely there.
		r := exec(t, sb, provider.Command{Args: []string{"/opt/capyrun/capyrun", "version"}})
		if !r.OK() || len(r.Stdout) == 0 {
			t.Errorf("status %d, output %q, %q", r.ExitCode, r.Stdout, r.Stderr)
		}
		if err := sb.WriteFile(t.Context(), "a/b", strings.NewReader("x"), provider.WriteOptions{}); err != nil {
			t.Error(err)
		}
	})
}

func testLimits(t *testing.T, h Harness) {
	p := h.New(t)
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		sb := create(t, p, provider.Spec{Image: h.Image, Memory: 64 << 20})
		// awk doubles a string until the kernel ends it.
		const hungry = `awk 'BEGIN { s = "x"; while (1) s = s s }'`
		r := exec(t, sb, provider.Command{Shell: hungry, Timeout: patience})
		if r.OK() || !r.OutOfMemory || r.TimedOut {
			t.Errorf("got %+v, want out of memory", r)
		}
		// The sandbox and its session outlive that.
		wantString(t, "afterwards", run(t, sb, "echo alive"), "alive\n")
		if r := exec(t, sb, provider.Command{Shell: "exit 3"}); r.OutOfMemory {
			t.Error("a later failure is called out of memory")
		}
		// The victim need not be the main process.
		if r := exec(t, sb, provider.Command{Shell: hungry + ` || exit 1`, Timeout: patience}); r.ExitCode != 1 || !r.OutOfMemory {
			t.Errorf("a child's end: %+v", r)
		}
		// Another command that fails at the same time is not to blame.
		other := make(chan *provider.Result, 1)
		go func() {
			r, err := sb.Exec(t.Context(), provider.Command{Shell: "touch waits; while [ ! -e ended ]; do sleep 0.01; done; exit 1", Timeout: patience})
			if err != nil {
				t.Error(err)
			}
			other <- r
		}()
		run(t, sb, "while [ ! -e waits ]; do sleep 0.01; done")
		if r := exec(t, sb, provider.Command{Shell: hungry + `; n=$?; touch ended; exit $n`, Timeout: patience}); r.ExitCode != 137 || !r.OutOfMemory {
			t.Errorf("the one that took the memory: %+v", r)
		}
		if r := <-other; r == nil || r.ExitCode != 1 || r.OutOfMemory {
			t.Errorf("the one that failed beside it: %+v", r)
		}
	})
	t.Run("pids", func(t *testing.T) {
		t.Parallel()
		sb := create(t, p, provider.Spec{Image: h.Image, PIDs: 64})
		r := exec(t, sb, provider.Command{Shell: "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; wait", Timeout: 2 * time.Second})
		if r.OK() {
			t.Errorf("200 processes fit into a limit of 64")
		}
		// A shell that cannot fork ends without ending its children.
		if _, err := sb.KillAll(t.Context()); err != nil {
			t.Error(err)
		}
		wantString(t, "afterwards", run(t, sb, "echo alive"), "alive\n")
	})
	t.Run("stats", func(t *testing.T) {
		t.Parallel()
		sb := create(t, p, provider.Spec{Image: h.Image, Memory: 64 << 20, PIDs: 100})
		run(t, sb, "true")
		s, err := sb.Stats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if s.MemoryLimit != 64<<20 || s.PIDsLimit != 100 || s.Memory <= 0 || s.Memory > s.MemoryLimit || s.PIDs < 1 || s.CPUTime <= 0 {
			t.Errorf("got %+v", s)
		}
		// A 64 MiB sandbox is usable only where the agent needs little of it.
		if s.Memory > 20<<20 {
			t.Errorf("at rest the sandbox holds %d bytes", s.Memory)
		}
	})
}
