package script

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"
)

// endless is a source without an end, such as /dev/zero.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestTargetWrite(t *testing.T) {
	out := t.TempDir()
	files, err := OpenFiles(fstest.MapFS{}, "", nil, out)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { files.Close() })
	target, err := files.Create("d/f")
	if err != nil {
		t.Fatal(err)
	}
	check := func(want string) {
		t.Helper()
		entries, err := os.ReadDir(filepath.Join(out, "d"))
		if err != nil || len(entries) != 1 {
			t.Errorf("%v, %v", entries, err)
		}
		if data, err := os.ReadFile(filepath.Join(out, "d/f")); err != nil || string(data) != want {
			t.Errorf("%q, %v", data, err)
		}
	}
	const limit = 1 << 20
	if err := target.write(strings.NewReader("12345"), 0o640, 5); err != nil {
		t.Fatal(err)
	}
	check("12345")
	if info, err := os.Stat(filepath.Join(out, "d/f")); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if err := target.write(endless{}, 0o644, limit); err == nil || !strings.Contains(err.Error(), "more than the 1048576 bytes") {
		t.Error(err)
	}
	check("12345")
	broken := errors.New("broken")
	if err := target.write(io.MultiReader(strings.NewReader("part"), iotest.ErrReader(broken)), 0o644, limit); !errors.Is(err, broken) {
		t.Error(err)
	}
	check("12345")

	// A link is replaced, not followed, and a directory stays.
	if err := errors.Join(os.WriteFile(filepath.Join(out, "other"), []byte("other"), 0o600), os.Remove(filepath.Join(out, "d/f")), os.Symlink("../other", filepath.Join(out, "d/f"))); err != nil {
		t.Fatal(err)
	}
	if err := target.Write(strings.NewReader("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	check("new")
	if data, err := os.ReadFile(filepath.Join(out, "other")); err != nil || string(data) != "other" {
		t.Errorf("%q, %v", data, err)
	}
	dir, err := files.Create("d")
	if err != nil {
		t.Fatal(err)
	}
	if err := dir.Write(strings.NewReader("x"), 0o644); err == nil {
		t.Error("a directory is replaced")
	}
	check("new")
	if entries, err := os.ReadDir(out); err != nil || len(entries) != 2 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
