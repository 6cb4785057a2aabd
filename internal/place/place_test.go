package place_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"github.com/capybara-hq/capyrun/internal/place"
	"github.com/capybara-hq/capyrun/internal/tartree"
)

// endless is a source without an end, such as /dev/zero.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

var errBroken = errors.New("broken")

func open(t *testing.T) (dir string, root *os.Root) {
	t.Helper()
	dir = t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return dir, root
}

// holds checks all that is in a directory: names and contents, "/" for directories.
func holds(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	err := filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if info.IsDir() {
			got[name] = "/"
			return nil
		}
		data, err := os.ReadFile(path)
		got[name] = string(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Errorf("there are %v, want %v", got, want)
		return
	}
	for name := range want {
		if got[name] != want[name] {
			t.Errorf("%s is %q, want %q", name, got[name], want[name])
		}
	}
}

func TestFile(t *testing.T) {
	const limit = 1 << 20
	dir, root := open(t)
	if err := place.File(root, "f", strings.NewReader("12345"), 0o640, 5); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, map[string]string{"f": "12345"})
	if info, err := os.Stat(filepath.Join(dir, "f")); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info, err)
	}
	if err := place.File(root, "f", endless{}, 0o644, limit); err == nil || !strings.Contains(err.Error(), "more than the 1048576 bytes") {
		t.Error(err)
	}
	if err := place.File(root, "f", io.MultiReader(strings.NewReader("part"), iotest.ErrReader(errBroken)), 0o644, limit); !errors.Is(err, errBroken) {
		t.Error(err)
	}
	if err := place.File(root, "new", iotest.ErrReader(errBroken), 0o644, limit); !errors.Is(err, errBroken) {
		t.Error(err)
	}
	holds(t, dir, map[string]string{"f": "12345"})

	// A link is replaced, not followed, and a directory stays.
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "other"), []byte("other"), 0o600), os.Remove(filepath.Join(dir, "f")), os.Symlink("other", filepath.Join(dir, "f"))); err != nil {
		t.Fatal(err)
	}
	if err := place.File(root, "f", strings.NewReader("new"), 0o644, limit); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := place.File(root, "d", strings.NewReader("x"), 0o644, limit); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory is replaced: %v", err)
	}
	holds(t, dir, map[string]string{"f": "new", "other": "other", "d": "/"})
}

// stream is a tar stream of files that all hold their own names.
func stream(t *testing.T, names ...string) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(name))}); err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, name)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestTree(t *testing.T) {
	dir, root := open(t)
	// Nothing of a new tree is there unless all of it is.
	whole := stream(t, "a", "b/c").Bytes()
	for name, broken := range map[string]io.Reader{
		"cut":     bytes.NewReader(whole[:1024]),
		"broken":  io.MultiReader(bytes.NewReader(whole[:1024]), iotest.ErrReader(errBroken)),
		"hostile": stream(t, "a", "../b"),
	} {
		if err := place.Tree(t.Context(), root, "tree", broken, tartree.Limits{}); err == nil {
			t.Errorf("%s: no error", name)
		}
		holds(t, dir, nil)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := place.Tree(ctx, root, "tree", bytes.NewReader(whole), tartree.Limits{}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	holds(t, dir, nil)

	if err := place.Tree(t.Context(), root, "tree", bytes.NewReader(whole), tartree.Limits{}); err != nil {
		t.Fatal(err)
	}
	holds(t, dir, map[string]string{"tree": "/", "tree/a": "a", "tree/b": "/", "tree/b/c": "b/c"})

	// A tree that exists is added to, and a failure says what it has left.
	err := place.Tree(t.Context(), root, "tree", stream(t, "d", "../e"), tartree.Limits{})
	if err == nil || !strings.Contains(err.Error(), "(what came until then is left in tree)") {
		t.Error(err)
	}
	holds(t, dir, map[string]string{"tree": "/", "tree/a": "a", "tree/b": "/", "tree/b/c": "b/c", "tree/d": "d"})
}

func TestTreeStaysInside(t *testing.T) {
	dir, root := open(t)
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := place.Tree(t.Context(), root, "link", stream(t, "a"), tartree.Limits{}); err == nil {
		t.Error("it went through a link")
	}
	holds(t, outside, nil)
}

// What is not a regular file stays what it is.
func TestFileReplacesNoDevice(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := place.File(root, "fifo", strings.NewReader("data"), 0o644, 100); err == nil {
		t.Error("a FIFO was written over")
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Type() != fs.ModeNamedPipe {
		t.Errorf("there are %v, %v", entries, err)
	}
}
