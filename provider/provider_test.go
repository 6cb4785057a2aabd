package provider_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capybara-hq/capyrun/provider"
)

func TestCleanWritePath(t *testing.T) {
	for _, c := range []struct {
		in       string
		strictly bool
		want     string // empty: refused
	}{
		{"a", true, "/workspace/a"},
		{"./a//b/", true, "/workspace/a/b"},
		{"/tmp/x", true, "/tmp/x"},
		{"/skills/x", true, "/skills/x"},
		{"..a", true, "/workspace/..a"},
		{"/workspace", false, "/workspace"},
		{".", false, "/workspace"},
		{"/workspace", true, ""},
		{"a/..", true, ""},
		{"", false, ""},
		{"..", false, ""},
		{"../tmp/x", true, "/tmp/x"},
		{"/etc/passwd", false, ""},
		{"/workspacex", false, ""},
		{"/tmp/../etc", false, ""},
		{"a\x00b", false, ""},
		{strings.Repeat("x", provider.MaxPath+1), false, ""},
	} {
		got, err := provider.CleanWritePath("path", c.in, c.strictly)
		if got != c.want || (err == nil) != (c.want != "") || err != nil && !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%q strictly %v: got %q, %v", c.in, c.strictly, got, err)
		}
	}
}

func FuzzCleanWritePath(f *testing.F) {
	for _, s := range []string{"a", "/tmp/../x", "....//", "/skills/./a/../../b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, err := provider.CleanWritePath("path", p, true)
		if err != nil {
			return
		}
		below := false
		for _, place := range []string{provider.Workspace, provider.TempDir, provider.SkillsDir} {
			below = below || strings.HasPrefix(got, place+"/")
		}
		if !below || got != path.Clean(got) || strings.Contains(got, "\x00") {
			t.Errorf("%q became %q", p, got)
		}
	})
}

// A quoted list must mean the same to a shell.
func TestQuoteArgs(t *testing.T) {
	args := []string{"a", "b c", "", "it's", `"$HOME" \n`, "*", "ü", "-x=1", "a\nb", "~"}
	out, err := exec.Command("sh", "-c", "printf '%s\\0' "+provider.QuoteArgs(args)).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if diff := cmp.Diff(args, got); diff != "" {
		t.Error(diff)
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("no route")
	err := fmt.Errorf("outer: %w", &provider.Error{Op: "exec", Sandbox: "x", Kind: provider.ErrSessionLost, Err: cause, Hint: "look"})
	if want := "outer: sandbox x: exec: session lost: no route (look)"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if !errors.Is(err, provider.ErrSessionLost) || !errors.Is(err, cause) || errors.Is(err, provider.ErrGone) {
		t.Error("it does not match what it must, or what it must not")
	}
	// A kind that the cause has already is not said twice.
	err = &provider.Error{Op: "write", Kind: provider.ErrInvalid, Err: &provider.InvalidError{Field: "mode", Value: "9", Reason: "is odd"}}
	if want := `write: mode "9": is odd`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	for err, want := range map[error]string{
		nil:                      "",
		provider.ErrGone:         "gone",
		fs.ErrNotExist:           "not found",
		os.ErrPermission:         "permission denied",
		context.Canceled:         "canceled",
		context.DeadlineExceeded: "deadline exceeded",
		cause:                    "",
	} {
		if got := provider.KindOf(err); got != want {
			t.Errorf("%v: kind %q, want %q", err, got, want)
		}
	}
	long := &provider.InvalidError{Field: "f", Value: strings.Repeat("ü", 1000)}
	if n := len([]rune(long.Error())); n > 120 {
		t.Errorf("a long value makes a message of %d characters", n)
	}
}

func TestOwner(t *testing.T) {
	self := provider.Self()
	if got := provider.ParseOwner(self.Label()); got != self {
		t.Errorf("%+v became %+v", self, got)
	}
	if !self.Known() || !self.Alive() {
		t.Errorf("this process is not alive: %+v", self)
	}
	reused := self
	reused.Start++
	if reused.Alive() {
		t.Error("another process of the same id is taken for the owner")
	}
	elsewhere := self
	elsewhere.Host += "x"
	if elsewhere.Known() {
		t.Error("a process on another host is known")
	}
	if o := provider.ParseOwner("{broken"); o != (provider.Owner{}) || o.Known() {
		t.Errorf("%+v", o)
	}

	// A child that has ended, and one that has but was not waited for.
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	child := self
	child.PID = cmd.Process.Pid
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if _, err := fmt.Sscan(fields[19], &child.Start); err != nil {
		t.Fatal(err)
	}
	if !child.Alive() {
		t.Error("a running child is not alive")
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if child.Alive() {
		t.Error("an ended child is alive")
	}
}

func TestGeneratedNames(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		name := provider.GenerateName()
		if err := provider.CheckName(name); err != nil || seen[name] || !strings.HasPrefix(name, provider.GeneratedPrefix) {
			t.Fatalf("%q, %v", name, err)
		}
		seen[name] = true
	}
}

// TestLongOperation: a path of thousands of bytes does not fill the screen, and
// its ends are still seen.
func TestLongOperation(t *testing.T) {
	err := &provider.Error{Op: "read /begin/" + strings.Repeat("x", 4000) + "/end", Sandbox: "box", Err: os.ErrNotExist}
	if msg := err.Error(); len(msg) > 300 || !strings.Contains(msg, "read /begin/x") || !strings.Contains(msg, "x/end: file does not exist") {
		t.Error(msg)
	}
}
