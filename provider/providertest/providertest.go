// Package providertest is the conformance suite of sandbox providers: what
// package provider promises, checked from outside. A provider's own tests call
// [Run] with a [Harness].
package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// Harness is what the suite needs of the provider under test.
type Harness struct {
	// New returns a provider that is closed when the test ends. Every call
	// returns another one, as another runner would have it.
	New func(t testing.TB) provider.Provider
	// Image has a POSIX shell with the usual utilities and nc (busybox will do).
	Image string
	// BashImage has bash.
	BashImage string
	// BareImage has neither a shell nor any other program.
	BareImage string
}

// Run runs the whole suite.
func Run(t *testing.T, h Harness) {
	for _, group := range []struct {
		name string
		run  func(*testing.T, Harness)
	}{
		{"Create", testCreate},
		{"Container", testContainer},
		{"Limits", testLimits},
		{"Exec", testExec},
		{"Output", testOutput},
		{"Stdin", testStdin},
		{"End", testEnd},
		{"Terminal", testTerminal},
		{"Kill", testKill},
		{"Process", testProcess},
		{"Files", testFiles},
		{"Paths", testPaths},
		{"Trees", testTrees},
		{"Skills", testSkills},
		{"Dial", testDial},
		{"Life", testLife},
		{"Find", testFind},
	} {
		t.Run(group.name, func(t *testing.T) {
			t.Parallel()
			group.run(t, h)
		})
	}
}

// patience bounds what must happen but may be slow on a loaded machine.
const patience = 60 * time.Second

// create makes a sandbox that is destroyed when the test ends.
func create(t testing.TB, p provider.Provider, spec provider.Spec) provider.Sandbox {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	sb, err := p.Create(ctx, spec)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	t.Cleanup(func() {
		if err := sb.Destroy(context.Background()); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return sb
}

// sandbox makes a sandbox of the harness's image with a provider of its own.
func sandbox(t testing.TB, h Harness) provider.Sandbox {
	t.Helper()
	return create(t, h.New(t), provider.Spec{Image: h.Image})
}

// run runs a command line and wants status 0.
func run(t testing.TB, sb provider.Sandbox, line string) string {
	t.Helper()
	r := exec(t, sb, provider.Command{Shell: line, Timeout: patience})
	if !r.OK() {
		t.Fatalf("%s: status %d, signal %q, timed out %v: %s", line, r.ExitCode, r.Signal, r.TimedOut, r.Stderr)
	}
	return string(r.Stdout)
}

func exec(t testing.TB, sb provider.Sandbox, cmd provider.Command) *provider.Result {
	t.Helper()
	r, err := sb.Exec(t.Context(), cmd)
	if err != nil {
		t.Fatalf("%s: %v", cmd.String(), err)
	}
	return r
}

// wait returns when cond holds.
func wait(t testing.TB, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v for: %s", patience, what)
		}
	}
}

// alive counts the processes in the sandbox with the text in their arguments
// or environment, beside the one that counts.
func alive(t testing.TB, sb provider.Sandbox, text string) int {
	t.Helper()
	// The mark is put together in the shell, so that the counting shell itself
	// does not carry it.
	half := len(text) / 2
	line := fmt.Sprintf(`a='%s'; b='%s'; n=0
for p in /proc/[0-9]*; do
  case "$(cat $p/cmdline 2>/dev/null | tr '\0' ' ')" in *"$a$b"*) [ "$(cut -d' ' -f3 $p/stat)" = Z ] || n=$((n+1));; esac
done 2>/dev/null
echo $n`, text[:half], text[half:])
	var n int
	if _, err := fmt.Sscan(run(t, sb, line), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// wantInvalid checks that err is an InvalidError that names the field.
func wantInvalid(t testing.TB, err error, field string) {
	t.Helper()
	var invalid *provider.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != field {
		t.Errorf("got error %v, want one that refuses the field %q", err, field)
	}
	if !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("%v is not ErrInvalid", err)
	}
}

func wantIs(t testing.TB, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("got error %v, want one that is %q", err, target)
	}
}

func wantString[T ~string | ~[]byte](t testing.TB, what string, got T, want string) {
	t.Helper()
	if string(got) != want {
		t.Errorf("%s: got %s, want %s", what, clip(string(got)), clip(want))
	}
}

func clip(s string) string {
	if len(s) > 200 {
		return fmt.Sprintf("%q... (%d bytes)", s[:200], len(s))
	}
	return fmt.Sprintf("%q", s)
}

// pattern is n bytes in which no two places look alike, with every byte value.
func pattern(n int) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "%08x", i)
		b.WriteByte(byte(i))
	}
	return b.Bytes()[:n]
}
