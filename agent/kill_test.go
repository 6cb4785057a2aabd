//go:build linux

package agent_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
	"pgregory.net/rapid"
)

// survivors returns the processes of the host, but for zombies, whose command
// line holds a word.
func survivors(t testing.TB, word string) []string {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, dir := range dirs {
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil || bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" Z")) {
			continue
		}
		if line, err := os.ReadFile(dir + "/cmdline"); err == nil && bytes.Contains(line, []byte(word)) {
			found = append(found, dir+": "+strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}

// hardToKill are commands that must be dead at their deadline. WORD marks their
// processes.
var hardToKill = []struct{ name, script string }{
	{"sleep", "sleep 1000.WORD"},
	{"busy loop", "while :; do : WORD; done"},
	{"ignores signals", `trap "" TERM INT HUP QUIT; while :; do sleep 1000.WORD; done`},
	{"stopped", "sleep 1000.WORD & kill -STOP $! $$"},
	{"pipeline", "sleep 1000.WORD | sleep 1000.WORD | sleep 1000.WORD"},
	{"background children", "for i in 1 2 3 4 5; do sleep 1000.WORD & done; wait"},
	{"own session", "setsid sleep 1000.WORD & wait; sleep 1000.WORD"},
	{"daemon", "(setsid sh -c 'sleep 1000.WORD & exec sleep 1000.WORD' &) ; sleep 1000.WORD"},
	{"daemon of daemons", "(setsid sh -c '(setsid sh -c \"(setsid sleep 1000.WORD &)\" &)' &) ; sleep 1000.WORD"},
	{"daemon without environment", "(env -i setsid /bin/sh -c '(env -i setsid /bin/sleep 1000.WORD &)' &) ; sleep 1000.WORD"},
	{"holds output", "setsid sleep 1000.WORD & exec sleep 1000.WORD"},
	{"keeps forking", "f() { sleep 0.01; (f WORD) & }; f WORD; while :; do (sleep 0.01; : WORD) & sleep 0.005; done"},
}

func testHardToKill(t *testing.T, s *agent.Session) {
	for i, tt := range hardToKill {
		t.Run(tt.name, func(t *testing.T) {
			word := fmt.Sprintf("%d%d%d", os.Getpid(), i, time.Now().UnixNano())
			script := "echo begun; " + strings.ReplaceAll(tt.script, "WORD", word)
			start := time.Now()
			r := mustExec(t, s, provider.Command{Shell: script, Timeout: 300 * time.Millisecond})
			took := time.Since(start)
			if left := survivors(t, word); len(left) > 0 {
				t.Errorf("survivors: %q", left)
			}
			if !r.TimedOut || string(r.Stdout) != "begun\n" {
				t.Errorf("got %+v", r)
			}
			if took > 8*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestTimeoutKillsTree(t *testing.T) {
	_, s := newSession(t)
	testHardToKill(t, s)
}

func TestTimeoutKillsTreeAsPID1(t *testing.T) {
	_, s := newPID1(t)
	testHardToKill(t, s)
}

func TestForkBombAsPID1(t *testing.T) {
	_, s := newPID1(t)
	word := fmt.Sprint("bomb", os.Getpid(), time.Now().UnixNano())
	bomb := "ulimit -u 300; f() { : " + word + "; f | f & }; while :; do f; done 2>/dev/null"
	for _, how := range []string{"deadline", "kill all"} {
		t.Run(how, func(t *testing.T) {
			cmd := provider.Command{Shell: bomb}
			if how == "deadline" {
				cmd.Timeout = time.Second
			}
			done := make(chan error, 1)
			go func() {
				_, err := s.Exec(ctx, cmd)
				done <- err
			}()
			if how == "kill all" {
				waitFor(t, func() bool { return len(survivors(t, word)) > 50 })
				if n, err := s.KillAll(ctx); err != nil || n != 1 {
					t.Errorf("KillAll: %d, %v", n, err)
				}
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			if left := survivors(t, word); len(left) > 0 {
				t.Errorf("%d survivors", len(left))
			}
		})
	}
	mustExec(t, s, provider.Command{Shell: "true"})
}

func TestCancelKillsTree(t *testing.T) {
	_, s := newSession(t)
	word := fmt.Sprint("cancel", os.Getpid(), time.Now().UnixNano())
	cause := errors.New("changed my mind")
	ctx, cancel := context.WithCancelCause(ctx)
	r, err := s.Exec(ctx, provider.Command{
		Shell:    "echo begun; (setsid sh -c 'while :; do sleep 1; done; : " + word + "' &); sleep 1000",
		OnOutput: func(provider.Stream, []byte) { cancel(cause) },
	})
	if !errors.Is(err, cause) || r == nil || string(r.Stdout) != "begun\n" {
		t.Errorf("got %+v, %v", r, err)
	}
	if left := survivors(t, word); len(left) > 0 {
		t.Errorf("survivors: %q", left)
	}
	assertNoCommands(t, s)
}

func TestCancelledBefore(t *testing.T) {
	b, s := newSession(t)
	cause := errors.New("too late")
	ctx, cancel := context.WithCancelCause(ctx)
	cancel(cause)
	if _, err := s.Exec(ctx, provider.Command{Shell: "touch ran"}); !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(b.workspace, "ran")); err == nil {
		t.Error("it ran")
	}
}

func TestKillByTag(t *testing.T) {
	b, s := newSession(t)
	other := b.session(agent.SessionConfig{}) // another runner
	var wg sync.WaitGroup
	start := func(s *agent.Session, tag string) {
		wg.Go(func() {
			r, err := s.Exec(ctx, provider.Command{Shell: "echo x > started-" + tag + "; sleep 1000", Tag: tag})
			if err != nil || r.Signal != "SIGKILL" {
				t.Errorf("%s: %+v, %v", tag, r, err)
			}
		})
		waitFor(t, func() bool {
			_, err := os.Stat(filepath.Join(b.workspace, "started-"+tag))
			return err == nil
		})
	}
	start(s, "a")
	start(other, "b")
	start(s, "c")
	p, err := other.Start(ctx, provider.Command{Shell: "sleep 1000", Tag: "d"})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := s.Kill(ctx, "a", "b", "d", "nothing"); err != nil || n != 3 {
		t.Errorf("Kill: %d, %v", n, err)
	}
	if r, err := p.Wait(ctx); err != nil || r.Signal != "SIGKILL" {
		t.Errorf("the background process: %+v, %v", r, err)
	}
	list, err := s.Processes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	running := ""
	for _, p := range list {
		if p.Running {
			running += p.Tag
		}
	}
	if running != "c" {
		t.Errorf("%q run, want c", running)
	}
	if n, err := s.KillAll(ctx); err != nil || n != 1 {
		t.Errorf("KillAll: %d, %v", n, err)
	}
	wg.Wait()
	if _, err := s.Kill(ctx, "-bad"); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("a bad tag: %v", err)
	}
}

// TestKillSparesOthers: the end of one command does not touch another one, nor
// what another one left behind.
func TestKillSparesOthers(t *testing.T) {
	_, s := newSession(t)
	word := fmt.Sprint("spared", os.Getpid(), time.Now().UnixNano())
	mustExec(t, s, provider.Command{Shell: "(setsid sh -c 'while :; do sleep 0.1; done; : " + word + "' >/dev/null 2>&1 &)"})
	p, err := s.Start(ctx, provider.Command{Shell: "(setsid sh -c 'while :; do sleep 0.1; done; : " + word + "' &); while :; do sleep 1; done"})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return len(survivors(t, word)) >= 3 })
	mustExec(t, s, provider.Command{Shell: "sleep 1000", Timeout: 50 * time.Millisecond})
	if n := len(survivors(t, word)); n < 3 {
		t.Errorf("%d processes are left of 3", n)
	}
	if err := p.Signal(ctx, "KILL"); err != nil {
		t.Fatal(err)
	}
	if left := survivors(t, word); len(left) != 1 {
		t.Errorf("want the first command's daemon alone, got %q", left)
	}
	if _, err := s.KillAll(ctx); err != nil {
		t.Fatal(err)
	}
	if left := survivors(t, word); len(left) > 0 {
		t.Errorf("survivors: %q", left)
	}
}

// TestRandomTreesDie: whatever tree of sessions, daemons and children a command
// makes of itself, none of it survives.
func TestRandomTreesDie(t *testing.T) {
	_, s := newSession(t)
	rapid.Check(t, func(rt *rapid.T) {
		word := fmt.Sprintf("tree%d%d", os.Getpid(), time.Now().UnixNano())
		var script func(depth int) string
		script = func(depth int) string {
			if depth == 0 {
				return "while :; do sleep 1; done; : " + word
			}
			inner := quote(script(depth - 1))
			var parts []string
			for range rapid.IntRange(1, 2).Draw(rt, "children") {
				parts = append(parts, rapid.SampledFrom([]string{
					"sh -c " + inner + " &",
					"setsid sh -c " + inner + " &",
					"(setsid sh -c " + inner + " &)",
					"(sh -c " + inner + " & sh -c " + inner + " &)",
					"(env -u CAPYRUN_EXEC setsid sh -c " + inner + " &)",
				}).Draw(rt, "how"))
			}
			parts = append(parts, rapid.SampledFrom([]string{"wait", "exit", ":", "while :; do sleep 1; done"}).Draw(rt, "end"), ": "+word)
			return strings.Join(parts, "\n")
		}
		body := script(rapid.IntRange(1, 3).Draw(rt, "depth"))
		r, err := s.Exec(ctx, provider.Command{Shell: body + "\nwhile :; do sleep 1; done; : " + word, Timeout: time.Duration(rapid.IntRange(20, 150).Draw(rt, "ms")) * time.Millisecond})
		if err != nil || !r.TimedOut && r.ExitCode != 0 {
			rt.Fatalf("got %+v, %v", r, err)
		}
		if left := survivors(t, word); r.TimedOut && len(left) > 0 {
			rt.Fatalf("survivors of\n%s\n%q", body, left)
		}
		if !r.TimedOut {
			s.KillAll(ctx)
		}
	})
}

func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// BenchmarkDeadline measures from a command's deadline to its result, when all
// of its processes are dead.
func BenchmarkDeadline(b *testing.B) {
	_, s := newSession(b)
	const timeout = 20 * time.Millisecond
	var after time.Duration
	for b.Loop() {
		start := time.Now()
		r, err := s.Exec(ctx, provider.Command{Shell: "setsid sleep 1000 & (setsid sleep 1000 &); sleep 1000 | sleep 1000", Timeout: timeout})
		if err != nil || !r.TimedOut {
			b.Fatal(r, err)
		}
		after += time.Since(start) - timeout
	}
	b.ReportMetric(float64(after.Microseconds())/1000/float64(b.N), "ms-after-deadline/op")
}
