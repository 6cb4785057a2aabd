//go:build linux

package agent_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

var ctx = context.Background()

func mustExec(t testing.TB, s *agent.Session, cmd provider.Command) *provider.Result {
	t.Helper()
	r, err := s.Exec(ctx, cmd)
	if err != nil {
		t.Fatalf("%s: %v", cmd.String(), err)
	}
	return r
}

func TestExecResults(t *testing.T) {
	b, s := newSession(t)
	if err := os.Mkdir(filepath.Join(b.workspace, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		cmd    provider.Command
		stdout string
		stderr string
		code   int
		signal string
	}{
		{name: "shell", cmd: provider.Command{Shell: "echo out; echo err >&2; exit 3"}, stdout: "out\n", stderr: "err\n", code: 3},
		{name: "argv", cmd: provider.Command{Args: []string{"printf", "%s|", "a b", "", "*"}}, stdout: "a b||*|"},
		{name: "absolute", cmd: provider.Command{Args: []string{"/bin/echo", "x"}}, stdout: "x\n"},
		{name: "signal", cmd: provider.Command{Shell: "kill -TERM $$"}, code: -1, signal: "SIGTERM"},
		{name: "own kill", cmd: provider.Command{Shell: "kill -9 $$"}, code: -1, signal: "SIGKILL"},
		{name: "last code", cmd: provider.Command{Shell: "exit 255"}, code: 255},
		{name: "default dir", cmd: provider.Command{Shell: "pwd"}, stdout: b.workspace + "\n"},
		{name: "dir", cmd: provider.Command{Shell: "pwd", Dir: "sub"}, stdout: b.workspace + "/sub\n"},
		{name: "absolute dir", cmd: provider.Command{Shell: "pwd", Dir: "/"}, stdout: "/\n"},
		{name: "env", cmd: provider.Command{Shell: `echo "$A,$HOME"`, Env: map[string]string{"A": "x=y z"}}, stdout: "x=y z,/workspace\n"},
		{name: "env overrides", cmd: provider.Command{Shell: `env | grep -c ^HOME=; echo $HOME`, Env: map[string]string{"HOME": "/h"}}, stdout: "1\n/h\n"},
		{name: "mark is ours", cmd: provider.Command{Shell: `env | grep -c ^CAPYRUN_EXEC=; test "$CAPYRUN_EXEC" != x`, Env: map[string]string{"CAPYRUN_EXEC": "x"}}, stdout: "1\n"},
		{name: "shell with a poor PATH", cmd: provider.Command{Shell: "echo $PATH", Env: map[string]string{"PATH": "/nowhere"}}, stdout: "/nowhere\n"},
		{name: "no stdin", cmd: provider.Command{Shell: "cat; echo end"}, stdout: "end\n"},
		{name: "stdin", cmd: provider.Command{Args: []string{"cat"}, Stdin: strings.NewReader("abc")}, stdout: "abc"},
		{name: "empty stdin", cmd: provider.Command{Args: []string{"cat"}, Stdin: strings.NewReader("")}},
		{name: "streamed stdin", cmd: provider.Command{Args: []string{"cat"}, Stdin: io.MultiReader(strings.NewReader("ab"), strings.NewReader("c"))}, stdout: "abc"},
		{name: "unread stdin", cmd: provider.Command{Args: []string{"true"}, Stdin: bytes.NewReader(make([]byte, 5<<20))}},
		{name: "closed stdin", cmd: provider.Command{Shell: "exec <&-; sleep 0.05; echo ok", Stdin: bytes.NewReader(make([]byte, 1<<20))}, stdout: "ok\n"},
		{name: "command like an option", cmd: provider.Command{Shell: "-x"}, stderr: "-x", code: 127},
		{name: "any bytes", cmd: provider.Command{Args: []string{"printf", "%s", "\xff\xfe"}, Env: map[string]string{"X": "\xff"}}, stdout: "\xff\xfe"},
		{name: "own session and group", cmd: provider.Command{Shell: `set -- $(cat /proc/self/stat | sed 's/.*) //'); test "$3" = $$ && test "$4" = $$ && echo yes`}, stdout: "yes\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := mustExec(t, s, tt.cmd)
			if string(r.Stdout) != tt.stdout {
				t.Errorf("stdout %q, want %q", r.Stdout, tt.stdout)
			}
			if !strings.Contains(string(r.Stderr), tt.stderr) || tt.stderr == "" && len(r.Stderr) > 0 {
				t.Errorf("stderr %q, want %q", r.Stderr, tt.stderr)
			}
			if r.ExitCode != tt.code || r.Signal != tt.signal {
				t.Errorf("exit code %d, signal %q, want %d, %q", r.ExitCode, r.Signal, tt.code, tt.signal)
			}
			if r.Truncated || r.TimedOut || r.OutOfMemory || r.Duration <= 0 {
				t.Errorf("got %+v", r)
			}
		})
	}
}

func TestExecNotStarted(t *testing.T) {
	b, s := newSession(t)
	write := func(name, content string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(b.workspace, name), []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	write("plain", "echo hi", 0o644)
	write("noformat", "\x01\x02\x03", 0o755)
	write("nointerpreter", "#!/no/such/interpreter\n", 0o755)
	if err := os.Mkdir(filepath.Join(b.workspace, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		cmd  provider.Command
		want string
	}{
		{"no such program", provider.Command{Args: []string{"no-such-program"}}, `no program "no-such-program" in PATH`},
		{"no such file", provider.Command{Args: []string{"./none"}}, `no program "./none"`},
		{"not executable", provider.Command{Args: []string{"./plain"}}, "not executable"},
		{"a directory", provider.Command{Args: []string{"./dir"}}, "is a directory"},
		{"bad format", provider.Command{Args: []string{"./noformat"}}, "another kind of machine"},
		{"no interpreter", provider.Command{Args: []string{"./nointerpreter"}}, "interpreter or loader"},
		{"no such dir", provider.Command{Shell: "true", Dir: "/no/such"}, "working directory /no/such does not exist"},
		{"dir is a file", provider.Command{Shell: "true", Dir: "plain"}, "is not a directory"},
		{"too long", provider.Command{Args: []string{"true", strings.Repeat("x", 200<<10)}}, "too long"},
		{"poor PATH", provider.Command{Args: []string{"true"}, Env: map[string]string{"PATH": "/nowhere"}}, `in PATH (/nowhere)`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, err := s.Exec(ctx, tt.cmd)
			if !errors.Is(err, provider.ErrNotStarted) || r != nil {
				t.Fatalf("got %v, %v, want ErrNotStarted", r, err)
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "sandbox box: exec: command not started: ") {
				t.Errorf("error %q, want %q in it", err, tt.want)
			}
		})
	}
	if _, err := s.Exec(ctx, provider.Command{Args: []string{"true", strings.Repeat("x", 5<<20)}}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("a request that is too long: %v", err)
	}
	if _, err := s.Exec(ctx, provider.Command{}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("an empty command: %v", err)
	}
	mustExec(t, s, provider.Command{Args: []string{"true"}})
}

func TestExecOutputCap(t *testing.T) {
	_, s := newSession(t)
	for _, tt := range []struct {
		name      string
		cmd       provider.Command
		stdout    string
		stderr    string
		truncated bool
	}{
		{"fits exactly", provider.Command{Shell: "printf abcd", MaxOutput: 4}, "abcd", "", false},
		{"one too many", provider.Command{Shell: "printf abcde", MaxOutput: 4}, "abcd", "", true},
		{"both streams", provider.Command{Shell: "printf abc; sleep 0.05; printf defg >&2; sleep 0.05; printf h", MaxOutput: 5}, "abc", "de", true},
		{"whole characters", provider.Command{Shell: `printf 'aé€😀'`, MaxOutput: 5}, "aé", "", true},
		{"no text", provider.Command{Shell: `printf '\377\377\377\377\377\377'`, MaxOutput: 5}, "\xff\xff\xff\xff\xff", "", true},
	} {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprint(tt.name, stream), func(t *testing.T) {
				cmd := tt.cmd
				total := 0
				if stream {
					cmd.OnOutput = func(_ provider.Stream, data []byte) { total += len(data) }
				}
				r := mustExec(t, s, cmd)
				if string(r.Stdout) != tt.stdout || string(r.Stderr) != tt.stderr || r.Truncated != tt.truncated {
					t.Errorf("got %q, %q, truncated %v", r.Stdout, r.Stderr, r.Truncated)
				}
				if stream && total < len(tt.stdout)+len(tt.stderr) {
					t.Errorf("OnOutput got %d bytes", total)
				}
			})
		}
	}
}

func TestExecLargeOutput(t *testing.T) {
	_, s := newSession(t)
	const size = 100 << 20
	// Every byte arrives, in order, through a callback that sees all of it.
	lines := bytes.Repeat([]byte("0123456789abcde\n"), 64<<10/16+1)
	var got int64
	bad := false
	r := mustExec(t, s, provider.Command{
		Shell:     fmt.Sprintf("yes 0123456789abcde | head -c %d", size),
		MaxOutput: 1000,
		OnOutput: func(_ provider.Stream, data []byte) {
			bad = bad || !bytes.HasPrefix(lines[got%16:], data)
			got += int64(len(data))
		},
	})
	if got != size || bad || len(r.Stdout) != 1000 || !r.Truncated {
		t.Errorf("got %d bytes, garbled %v, kept %d, truncated %v", got, bad, len(r.Stdout), r.Truncated)
	}
	// And up to the cap without one.
	r = mustExec(t, s, provider.Command{Shell: fmt.Sprintf("yes 0123456789abcde | head -c %d", 8<<20), MaxOutput: 8 << 20})
	if len(r.Stdout) != 8<<20 || r.Truncated || !bytes.Equal(r.Stdout, bytes.Repeat([]byte("0123456789abcde\n"), 8<<20/16)) {
		t.Errorf("got %d bytes, truncated %v", len(r.Stdout), r.Truncated)
	}
}

func TestExecLargeInput(t *testing.T) {
	_, s := newSession(t)
	const size = 100 << 20
	r := mustExec(t, s, provider.Command{Shell: "cksum", Stdin: io.LimitReader(&pattern{}, size)})
	want := mustExec(t, s, provider.Command{Shell: fmt.Sprintf("yes 0123456789abcde | head -c %d | cksum", size)})
	if string(r.Stdout) != string(want.Stdout) {
		t.Errorf("cksum %q, want %q", r.Stdout, want.Stdout)
	}
}

// TestExecThereAndBack: what goes through a command comes back byte for byte.
func TestExecThereAndBack(t *testing.T) {
	_, s := newSession(t)
	const size = 100 << 20
	sent, got := sha256.New(), sha256.New()
	input := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{}), size), sent)
	r := mustExec(t, s, provider.Command{
		Args: []string{"cat"}, Stdin: input, MaxOutput: 1,
		OnOutput: func(_ provider.Stream, data []byte) { got.Write(data) },
	})
	if !r.OK() || !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
		t.Errorf("something else came back: %+v", r)
	}
}

// pattern is an endless input.
type pattern struct{ n int }

func (p *pattern) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = "0123456789abcde\n"[p.n%16]
		p.n++
	}
	return len(b), nil
}

func TestExecBlockedStdin(t *testing.T) {
	_, s := newSession(t)
	r, w := io.Pipe()
	defer w.Close() // ends the goroutine that reads
	res := mustExec(t, s, provider.Command{Shell: "echo done", Stdin: r})
	if trim(res.Stdout) != "done" {
		t.Errorf("got %q", res.Stdout)
	}
}

func TestExecFailingStdin(t *testing.T) {
	_, s := newSession(t)
	cause := errors.New("the disk is on fire")
	_, err := s.Exec(ctx, provider.Command{Shell: "cat; sleep 1000", Stdin: io.MultiReader(strings.NewReader("abc"), &failing{cause})})
	if !errors.Is(err, cause) {
		t.Errorf("got %v", err)
	}
	assertNoCommands(t, s)
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

func assertNoCommands(t *testing.T, s *agent.Session) {
	t.Helper()
	list, err := s.Processes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range list {
		if p.Running {
			t.Errorf("still runs: %+v", p)
		}
	}
}

func TestExecBackgroundChildHoldsOutput(t *testing.T) {
	b, s := newSession(t)
	start := time.Now()
	r := mustExec(t, s, provider.Command{Shell: "(sleep 3; echo late; echo alive > survived) & echo early"})
	if took := time.Since(start); took > 2900*time.Millisecond {
		t.Errorf("returned after %v", took)
	}
	if string(r.Stdout) != "early\n" {
		t.Errorf("stdout %q", r.Stdout)
	}
	// The child lives on, and its output has somewhere to go.
	waitFor(t, func() bool {
		data, err := os.ReadFile(filepath.Join(b.workspace, "survived"))
		return err == nil && string(data) == "alive\n"
	})
}

// waitFor waits for a condition that must become true soon.
func waitFor(t testing.TB, what func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not come true")
		}
	}
}

func TestExecSlowCallbackLosesNothing(t *testing.T) {
	_, s := newSession(t)
	first := true
	total := 0
	r := mustExec(t, s, provider.Command{
		Shell:     "head -c 300000 /dev/zero; exec sleep 0 &",
		MaxOutput: 1 << 20,
		OnOutput: func(_ provider.Stream, data []byte) {
			if first {
				time.Sleep(500 * time.Millisecond) // longer than the drain's grace
				first = false
			}
			total += len(data)
		},
	})
	if total != 300000 || len(r.Stdout) != 300000 {
		t.Errorf("got %d bytes, kept %d", total, len(r.Stdout))
	}
}

func TestExecConcurrent(t *testing.T) {
	_, s := newSession(t)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			want := fmt.Sprint(i % 100)
			r, err := s.Exec(ctx, provider.Command{Shell: "cat; exit " + want, Stdin: strings.NewReader(want)})
			if err != nil {
				t.Error(err)
				return
			}
			if string(r.Stdout) != want || fmt.Sprint(r.ExitCode) != want {
				t.Errorf("got %q and %d, want %s", r.Stdout, r.ExitCode, want)
			}
		})
	}
	wg.Wait()
}

func TestExecOutputIsText(t *testing.T) {
	_, s := newSession(t)
	r := mustExec(t, s, provider.Command{Shell: "while :; do printf '€'; printf '€' >&2; done | head -c 100000", MaxOutput: 10001})
	if !utf8.Valid(r.Stdout) {
		t.Error("a character was split")
	}
}

func BenchmarkExec(b *testing.B) {
	_, s := newSession(b)
	for b.Loop() {
		if _, err := s.Exec(ctx, provider.Command{Args: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExecShell(b *testing.B) {
	_, s := newSession(b)
	for b.Loop() {
		if _, err := s.Exec(ctx, provider.Command{Shell: "true"}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkExecParallel(b *testing.B) {
	_, s := newSession(b)
	b.SetParallelism(8)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := s.Exec(ctx, provider.Command{Args: []string{"/bin/true"}}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPing(b *testing.B) {
	_, s := newSession(b)
	for b.Loop() {
		if err := s.Ping(ctx); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkExecOutput measures output beyond the cap.
func BenchmarkExecOutput(b *testing.B) {
	_, s := newSession(b)
	b.SetBytes(256 << 20)
	for b.Loop() {
		if _, err := s.Exec(ctx, provider.Command{Shell: "head -c 268435456 /dev/zero"}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkForkExec is the floor of BenchmarkExec.
func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		p, err := os.StartProcess("/bin/true", []string{"true"}, &os.ProcAttr{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := p.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}
