//go:build linux

package agent_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/internal/tartree"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/google/go-cmp/cmp"
)

func (b *sandbox) path(name string) string { return filepath.Join(b.workspace, name) }

func (b *sandbox) write(name, content string, mode fs.FileMode) {
	b.t.Helper()
	if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.path(name), []byte(content), mode); err != nil {
		b.t.Fatal(err)
	}
	if err := os.Chmod(b.path(name), mode); err != nil {
		b.t.Fatal(err)
	}
}

func (b *sandbox) symlink(target, name string) {
	b.t.Helper()
	if err := os.Symlink(target, b.path(name)); err != nil {
		b.t.Fatal(err)
	}
}

// noTemporaries checks that no temporary file is left.
func (b *sandbox) noTemporaries() {
	b.t.Helper()
	for _, dir := range []string{b.workspace, b.tmp} {
		filepath.WalkDir(dir, func(p string, _ fs.DirEntry, _ error) error {
			if strings.Contains(p, ".capyrun-") {
				b.t.Errorf("left behind: %s", p)
			}
			return nil
		})
	}
}

func TestWriteFile(t *testing.T) {
	b, s := newSession(t)
	b.write("old", "old content", 0o640)
	b.write("target", "old", 0o600)
	b.symlink("target", "link")
	b.symlink("/workspace/target", "absolute-link")
	b.symlink("/tmp", "tmp-link")
	b.symlink("missing", "dangling")
	for _, tt := range []struct {
		path, where, content string
		opts                 provider.WriteOptions
		mode                 fs.FileMode
	}{
		{"new", "new", "x", provider.WriteOptions{}, 0o644},
		{"empty", "empty", "", provider.WriteOptions{}, 0o644},
		{"a/b/c/new", "a/b/c/new", "x", provider.WriteOptions{}, 0o644},
		{"/workspace/abs", "abs", "x", provider.WriteOptions{Mode: 0o750}, 0o750},
		{"old", "old", "new", provider.WriteOptions{}, 0o640},
		{"old", "old", "again", provider.WriteOptions{Mode: 0o777}, 0o777},
		{"link", "target", "by link", provider.WriteOptions{}, 0o600},
		{"absolute-link", "target", "by absolute link", provider.WriteOptions{}, 0o600},
		{"dangling", "missing", "x", provider.WriteOptions{}, 0o644},
		{"tmp-link/x", "../tmp/x", "x", provider.WriteOptions{}, 0o644},
		{"/tmp/y", "../tmp/y", "x", provider.WriteOptions{}, 0o644},
		{"a/../dots", "dots", "x", provider.WriteOptions{}, 0o644},
		{"bytes-\xff\n", "bytes-\xff\n", "x", provider.WriteOptions{}, 0o644},
		{"big", "big", strings.Repeat("0123456789", 1<<20), provider.WriteOptions{}, 0o644},
	} {
		if err := s.WriteFile(ctx, tt.path, strings.NewReader(tt.content), tt.opts); err != nil {
			t.Errorf("%q: %v", tt.path, err)
			continue
		}
		fi, err := os.Lstat(b.path(tt.where))
		if err != nil || fi.Mode() != tt.mode {
			t.Errorf("%q: %v, %v, want mode %v", tt.path, fi, err, tt.mode)
		}
		if b.read(tt.where) != tt.content {
			t.Errorf("%q: wrong content", tt.path)
		}
	}
	if fi, err := os.Lstat(b.path("link")); err != nil || fi.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v, %v", fi, err)
	}
	b.noTemporaries()
}

func TestWriteFileAppend(t *testing.T) {
	b, s := newSession(t)
	for _, part := range []string{"a", "b", "c"} {
		if err := s.WriteFile(ctx, "sub/log", strings.NewReader(part), provider.WriteOptions{Append: true, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
	}
	if fi, err := os.Stat(b.path("sub/log")); err != nil || fi.Mode() != 0o600 || b.read("sub/log") != "abc" {
		t.Errorf("got %v, %q", fi, b.read("sub/log"))
	}
}

// outsideDir is a directory that no sandbox of the tests has in its /tmp.
func outsideDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "capyrun-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func TestWriteFileRefused(t *testing.T) {
	b, s := newSession(t)
	outside := outsideDir(t)
	b.symlink(outside, "out")
	b.symlink("../..", "up")
	b.symlink(filepath.Join(outside, "file"), "outfile")
	b.symlink("loop", "loop")
	b.write("file", "x", 0o644)
	if err := os.Mkdir(b.path("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		want error
		text string
	}{
		{"", provider.ErrInvalid, "empty"},
		{"/etc/x", provider.ErrInvalid, "must stay in"},
		{"../x", provider.ErrInvalid, "must stay in"},
		{"/workspace", provider.ErrInvalid, "below"},
		{"out/x", provider.ErrInvalid, "leads to " + outside + "/x"},
		{"outfile", provider.ErrInvalid, "leads to " + outside + "/file"},
		{"up/x", provider.ErrInvalid, "leads to"},
		{"a\x00b", provider.ErrInvalid, "NUL"},
		{strings.Repeat("x/", 3000), provider.ErrInvalid, "4096"},
		{"dir", provider.ErrIsDirectory, ""},
		{"file/x", provider.ErrNotDirectory, ""},
		{"loop", syscall.ELOOP, "links"},
		{strings.Repeat("x", 300), syscall.ENAMETOOLONG, "too long"},
	} {
		err := s.WriteFile(ctx, tt.path, strings.NewReader("x"), provider.WriteOptions{})
		if err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%q: %v, want %q", tt.path, err, tt.text)
		}
		if kind, ok := tt.want.(provider.Kind); ok && !errors.Is(err, kind) {
			t.Errorf("%q: %v, want %v", tt.path, err, kind)
		}
	}
	if err := s.WriteFile(ctx, "x", strings.NewReader(""), provider.WriteOptions{Mode: fs.ModeSetuid | 0o755}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("setuid: %v", err)
	}
	if left, _ := os.ReadDir(outside); len(left) > 0 {
		t.Errorf("written outside: %v", left)
	}
	b.noTemporaries()
}

func TestWriteFileInterrupted(t *testing.T) {
	b, s := newSession(t)
	b.write("file", "old", 0o644)
	cause := errors.New("the source broke")
	if err := s.WriteFile(ctx, "file", io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), &failing{cause}), provider.WriteOptions{}); !errors.Is(err, cause) {
		t.Errorf("a failing source: %v", err)
	}
	if err := s.WriteFile(ctx, "file", &failing{cause}, provider.WriteOptions{}); !errors.Is(err, cause) {
		t.Errorf("a source that fails at once: %v", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r, w := io.Pipe()
	defer w.Close()
	go func() {
		w.Write(make([]byte, 1<<20))
		cancel(cause)
	}()
	if err := s.WriteFile(ctx, "file", r, provider.WriteOptions{}); !errors.Is(err, cause) {
		t.Errorf("a cancelled write: %v", err)
	}
	short, stop := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer stop()
	silent, silence := io.Pipe()
	defer silence.Close()
	if err := s.WriteFile(short, "file", silent, provider.WriteOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a source that says nothing: %v", err)
	}
	if b.read("file") != "old" {
		t.Error("the file has changed")
	}
	b.noTemporaries()
}

func TestWriteFileIsAtomic(t *testing.T) {
	b, s := newSession(t)
	contents := []string{strings.Repeat("a", 300000), strings.Repeat("b", 200000)}
	b.write("file", contents[0], 0o644)
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if got, err := os.ReadFile(b.path("file")); err != nil || string(got) != contents[0] && string(got) != contents[1] {
				t.Errorf("a mixture of %d bytes, %v", len(got), err)
				return
			}
		}
	}()
	for i := range 50 {
		if err := s.WriteFile(ctx, "file", strings.NewReader(contents[i%2]), provider.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	<-done
}

func TestFIFO(t *testing.T) {
	b, s := newSession(t)
	if err := syscall.Mkfifo(b.path("fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(ctx, "fifo", strings.NewReader("x"), provider.WriteOptions{}); err == nil || !strings.Contains(err.Error(), "nothing reads") {
		t.Errorf("nobody reads: %v", err)
	}
	if f, err := s.ReadFile(ctx, "fifo", provider.ReadOptions{}); err != nil || len(f.Data) > 0 {
		t.Errorf("nobody writes: %v, %v", f, err)
	}
	p := mustStart(t, s, provider.Command{Shell: "cat fifo"})
	waitFor(t, func() bool {
		return s.WriteFile(ctx, "fifo", strings.NewReader("through"), provider.WriteOptions{}) == nil
	})
	if r, err := p.Wait(ctx); err != nil || string(r.Stdout) != "through" {
		t.Errorf("got %+v, %v", r, err)
	}
	// Reading one whose writer says nothing can be cancelled.
	holder := mustStart(t, s, provider.Command{Shell: "exec 3<>fifo; echo ready; sleep 1000"})
	waitFor(t, func() bool {
		out, err := holder.Output(ctx)
		return err == nil && string(out.Stdout) == "ready\n"
	})
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := s.ReadFile(short, "fifo", provider.ReadOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a read that waits: %v", err)
	}
	if _, err := s.ReadFile(ctx, "/dev/zero", provider.ReadOptions{Max: 1 << 20}); err != nil {
		t.Errorf("a device: %v", err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Error(err)
	}
}

func TestReadFile(t *testing.T) {
	b, s := newSession(t)
	b.write("f", "0123456789", 0o644)
	big := strings.Repeat("0123456789abcdef", 1<<18)
	b.write("big", big, 0o644)
	b.write("empty", "", 0o644)
	b.symlink("f", "link")
	for _, tt := range []struct {
		path      string
		opts      provider.ReadOptions
		want      string
		truncated bool
		size      int64
	}{
		{"f", provider.ReadOptions{}, "0123456789", false, 10},
		{"link", provider.ReadOptions{}, "0123456789", false, 10},
		{"/workspace/f", provider.ReadOptions{Max: 10}, "0123456789", false, 10},
		{"f", provider.ReadOptions{Max: 4}, "0123", true, 10},
		{"f", provider.ReadOptions{Offset: 8}, "89", false, 10},
		{"f", provider.ReadOptions{Offset: 3, Max: 2}, "34", true, 10},
		{"f", provider.ReadOptions{Offset: 100}, "", false, 10},
		{"empty", provider.ReadOptions{}, "", false, 0},
		{"big", provider.ReadOptions{}, big, false, 4 << 20},
	} {
		f, err := s.ReadFile(ctx, tt.path, tt.opts)
		if err != nil || string(f.Data) != tt.want || f.Truncated != tt.truncated || f.Size != tt.size {
			t.Errorf("%s %+v: %v", tt.path, tt.opts, err)
		}
	}
	for path, want := range map[string]error{
		"none": fs.ErrNotExist, "none/x": fs.ErrNotExist, "f/x": provider.ErrNotDirectory, "/": provider.ErrIsDirectory, "": provider.ErrInvalid,
	} {
		if _, err := s.ReadFile(ctx, path, provider.ReadOptions{}); !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", path, err, want)
		}
		if _, err := s.OpenFile(ctx, path, provider.ReadOptions{}); !errors.Is(err, want) {
			t.Errorf("open %q: %v, want %v", path, err, want)
		}
	}
	_, err := s.ReadFile(ctx, "none", provider.ReadOptions{})
	if want := "sandbox box: read none: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestOpenFile(t *testing.T) {
	b, s := newSession(t)
	big := strings.Repeat("0123456789abcdef", 1<<18)
	b.write("big", big, 0o644)
	f, err := s.OpenFile(ctx, "big", provider.ReadOptions{Offset: 16})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(f); err != nil || string(got) != big[16:] {
		t.Errorf("got %d bytes, %v", len(got), err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	// Closed in the middle.
	if f, err = s.OpenFile(ctx, "big", provider.ReadOptions{}); err != nil {
		t.Fatal(err)
	}
	io.ReadFull(f, make([]byte, 100))
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("a read after Close: %v", err)
	}
	// Cancelled in the middle.
	ctx, cancel := context.WithCancel(ctx)
	if f, err = s.OpenFile(ctx, "/dev/zero", provider.ReadOptions{}); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cancel()
	if _, err := io.Copy(io.Discard, f); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled read: %v", err)
	}
	if err := s.Ping(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestStatAndReadDir(t *testing.T) {
	b, s := newSession(t)
	b.write("d/f", "12345", 0o640)
	b.write("d/a-b", "", 0o644)
	b.write("d/a/x", "", 0o644)
	b.write("d/a/y\xff", "", 0o644)
	b.symlink("f", "d/link")
	b.symlink("/", "d/root")
	if err := syscall.Mkfifo(b.path("d/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	when := time.Date(2020, 1, 2, 3, 4, 5, 678, time.UTC)
	if err := os.Chtimes(b.path("d/f"), when, when); err != nil {
		t.Fatal(err)
	}
	fi, err := s.Stat(ctx, "d/link")
	if err != nil || fi.Path != "/workspace/d/link" || fi.Kind != provider.KindFile || fi.Size != 5 || fi.Mode != 0o640 || !fi.ModTime.Equal(when) {
		t.Errorf("Stat: %+v, %v", fi, err)
	}
	if fi, err := s.Stat(ctx, "/"); err != nil || fi.Kind != provider.KindDirectory || fi.Path != "/" {
		t.Errorf("Stat /: %+v, %v", fi, err)
	}
	if fi, err := s.Stat(ctx, "d/fifo"); err != nil || fi.Kind != provider.KindOther {
		t.Errorf("Stat fifo: %+v, %v", fi, err)
	}
	if _, err := s.Stat(ctx, "none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stat none: %v", err)
	}

	list := func(path string, recursive bool) []string {
		t.Helper()
		infos, err := s.ReadDir(ctx, path, recursive)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, fi := range infos {
			got = append(got, fmt.Sprintf("%s %s %d %v %s", fi.Path, fi.Kind, fi.Size, fi.Mode, fi.Target))
		}
		return got
	}
	want := []string{
		"a directory 0 -rwxr-xr-x ", "a-b file 0 -rw-r--r-- ", "f file 5 -rw-r----- ", "fifo other 0 -rw------- ",
		"link symlink 0 -rwxrwxrwx f", "root symlink 0 -rwxrwxrwx /",
	}
	if diff := cmp.Diff(want, list("d", false)); diff != "" {
		t.Error(diff)
	}
	want = append(want[:1:1], append([]string{"a/x file 0 -rw-r--r-- ", "a/y\xff file 0 -rw-r--r-- "}, want[1:]...)...)
	if diff := cmp.Diff(want, list("d", true)); diff != "" {
		t.Error(diff)
	}
	for path, want := range map[string]error{"d/f": provider.ErrNotDirectory, "none": fs.ErrNotExist} {
		if _, err := s.ReadDir(ctx, path, false); !errors.Is(err, want) {
			t.Errorf("ReadDir %s: %v", path, err)
		}
	}
	if infos, err := s.ReadDir(ctx, "d/a", true); err != nil || len(infos) != 2 {
		t.Errorf("%v, %v", infos, err)
	}
	if err := os.Mkdir(b.path("many"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 5000 {
		b.write(fmt.Sprintf("many/%05d", i), "", 0o644)
	}
	infos, err := s.ReadDir(ctx, "many", true)
	if err != nil || len(infos) != 5000 || infos[4321].Path != "04321" {
		t.Errorf("%d entries, %v", len(infos), err)
	}
}

func TestGlob(t *testing.T) {
	b, s := newSession(t)
	for _, name := range []string{"a.go", "b.go", "c.txt", "d/e.go", "d/f/g.go", ".hidden.go", "x{y}.go"} {
		b.write(name, "", 0o644)
	}
	b.symlink("d", "link")
	for pattern, want := range map[string][]string{
		"*.go":             {".hidden.go", "a.go", "b.go", "x{y}.go"},
		"[ab].go":          {"a.go", "b.go"},
		"?.txt":            {"c.txt"},
		"**/*.go":          {".hidden.go", "a.go", "b.go", "d/e.go", "d/f/g.go", "x{y}.go"},
		"d/**":             {"d", "d/e.go", "d/f", "d/f/g.go"},
		"x{y}.go":          {"x{y}.go"},
		"none*":            {},
		"a.go":             {"a.go"},
		"/workspace/*.txt": {"/workspace/c.txt"},
		"/workspace/d/*":   {"/workspace/d/e.go", "/workspace/d/f"},
		"/no/such/*":       {},
		"./a.*":            {"a.go"},
		"link/*.go":        {"link/e.go"},
	} {
		got, err := s.Glob(ctx, pattern)
		if err != nil {
			t.Errorf("%s: %v", pattern, err)
			continue
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", pattern, diff)
		}
	}
	for _, bad := range []string{"", "[", "a\x00", "../*"} {
		if _, err := s.Glob(ctx, bad); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// TestUnreadableDirectory: what may not be read is listed without its content.
func TestUnreadableDirectory(t *testing.T) {
	b, s := newSession(t)
	b.write("d/locked/f", "", 0o644)
	b.write("d/unsearchable/f", "", 0o644)
	for name, mode := range map[string]fs.FileMode{"d/locked": 0, "d/unsearchable": 0o444} {
		if err := os.Chmod(b.path(name), mode); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(b.path(name), 0o755)
	}
	want := []string{"locked", "unsearchable"}
	if os.Getuid() == 0 {
		want = []string{"locked", "locked/f", "unsearchable", "unsearchable/f"} // root may read everything
	} else {
		for _, name := range want {
			if _, err := s.ReadDir(ctx, "d/"+name, true); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	infos, err := s.ReadDir(ctx, "d", true)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, fi := range infos {
		got = append(got, fi.Path)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestTooDeep: a listing that cannot reach everything says so.
func TestTooDeep(t *testing.T) {
	b, s := newSession(t)
	b.write("shallow/a/f", "", 0o644)
	if err := os.Mkdir(b.path("deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.OpenRoot(b.path("deep"))
	if err != nil {
		t.Fatal(err)
	}
	elem := strings.Repeat("d", 15)
	for range 400 { // paths of 6400 bytes
		if err := dir.Mkdir(elem, 0o755); err != nil {
			t.Fatal(err)
		}
		next, err := dir.OpenRoot(elem)
		if err != nil {
			t.Fatal(err)
		}
		dir.Close()
		dir = next
	}
	dir.Close()
	check := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), elem) || !strings.Contains(err.Error(), "cannot be listed: file name too long") || len(err.Error()) > 400 {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, path := range []string{".", "deep", "deep/" + elem} {
		_, err := s.ReadDir(ctx, path, true)
		check(path, err)
	}
	for _, pattern := range []string{"**", "deep/**/none", "/workspace/deep/**"} {
		_, err := s.Glob(ctx, pattern)
		check(pattern, err)
	}
	if infos, err := s.ReadDir(ctx, "deep", false); err != nil || len(infos) != 1 {
		t.Errorf("%v, %v", infos, err)
	}
	if infos, err := s.ReadDir(ctx, "shallow", true); err != nil || len(infos) != 2 {
		t.Errorf("%v, %v", infos, err)
	}
	for _, pattern := range []string{"deep/*", "shallow/**/f"} {
		if got, err := s.Glob(ctx, pattern); err != nil || len(got) != 1 {
			t.Errorf("%s: %v, %v", pattern, got, err)
		}
	}
	for _, pattern := range []string{strings.Repeat("x", 300), strings.Repeat("x", 300) + "/*"} {
		if got, err := s.Glob(ctx, pattern); err != nil || len(got) != 0 {
			t.Errorf("%.9s: %v, %v", pattern, got, err)
		}
	}
}

func TestMkdirRemoveRename(t *testing.T) {
	b, s := newSession(t)
	outside := outsideDir(t)
	if err := os.WriteFile(filepath.Join(outside, "keep"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(what string, err error, want error) {
		t.Helper()
		if want == nil && err != nil || want != nil && !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	check("mkdir", s.Mkdir(ctx, "a/b/c"), nil)
	check("mkdir again", s.Mkdir(ctx, "a/b/c"), nil)
	check("mkdir place", s.Mkdir(ctx, "/workspace"), nil)
	b.write("file", "x", 0o644)
	check("mkdir file", s.Mkdir(ctx, "file"), fs.ErrExist)
	check("mkdir below file", s.Mkdir(ctx, "file/x"), provider.ErrNotDirectory)
	check("mkdir outside", s.Mkdir(ctx, "/etc/x"), provider.ErrInvalid)

	b.symlink(outside, "out")
	b.symlink(outside, "a/out")
	check("remove link", s.Remove(ctx, "out"), nil)
	check("remove tree", s.Remove(ctx, "a"), nil)
	check("remove missing", s.Remove(ctx, "a"), fs.ErrNotExist)
	check("remove place", s.Remove(ctx, "/tmp"), provider.ErrInvalid)
	if _, err := os.Stat(filepath.Join(outside, "keep")); err != nil {
		t.Error("a removal went through a link")
	}
	deep := strings.Repeat("d/", 100) + "f"
	b.write(deep, "x", 0o644)
	check("remove deep", s.Remove(ctx, "d"), nil)
	if _, err := os.Lstat(b.path("d")); err == nil {
		t.Error("it is still there")
	}

	b.write("dir/f", "content", 0o600)
	b.symlink("f", "dir/link")
	b.symlink("/usr", "dir/abs")
	check("rename", s.Rename(ctx, "dir", "dir2"), nil)
	check("rename file over file", s.Rename(ctx, "dir2/f", "file"), nil)
	if b.read("file") != "content" {
		t.Error("wrong content")
	}
	check("rename missing", s.Rename(ctx, "none", "x"), fs.ErrNotExist)
	check("rename to missing parent", s.Rename(ctx, "file", "none/x"), fs.ErrNotExist)
	check("rename file over directory", s.Rename(ctx, "file", "dir2"), fs.ErrExist)
	check("rename directory over file", s.Rename(ctx, "dir2", "file"), provider.ErrNotDirectory)
	check("rename outside", s.Rename(ctx, "file", "/etc/x"), provider.ErrInvalid)
	check("rename to skills", s.Rename(ctx, "file", "/skills/x"), provider.ErrInvalid)
	b.symlink(outside, "out")
	check("rename through link", s.Rename(ctx, "file", "out/x"), provider.ErrInvalid)
	b.noTemporaries()
}

// mountTmpfs mounts a file system that is unmounted when the test ends. The test
// is skipped for users who may not mount, which root may.
func mountTmpfs(t *testing.T, dir, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if os.Getuid() != 0 {
			t.Skipf("no right to mount: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, syscall.MNT_DETACH) })
}

// TestRenameAcrossFileSystems needs two, which the namespaces' own have.
func TestRenameAcrossFileSystems(t *testing.T) {
	b, s := newSession(t)
	mountTmpfs(t, b.tmp, "")
	b.write("dir/sub/f", "content", 0o640)
	b.write("dir/x", "#!", 0o755)
	b.symlink("/usr/bin", "dir/abs")
	b.write("file", "f", 0o755)
	b.symlink("file", "link")
	for _, name := range []string{"dir", "file", "link"} {
		if err := s.Rename(ctx, name, "/tmp/"+name); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := os.Lstat(b.path(name)); err == nil {
			t.Errorf("%s is still there", name)
		}
	}
	for name, mode := range map[string]fs.FileMode{"dir/sub/f": 0o640, "dir/x": 0o755, "file": 0o755} {
		if fi, err := os.Stat(filepath.Join(b.tmp, name)); err != nil || fi.Mode() != mode {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	for name, want := range map[string]string{"dir/abs": "/usr/bin", "link": "file"} {
		if got, err := os.Readlink(filepath.Join(b.tmp, name)); err != nil || got != want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	b.write("file", "other", 0o644)
	if err := s.Rename(ctx, "file", "/tmp/dir"); !errors.Is(err, provider.ErrIsDirectory) {
		t.Errorf("file over directory: %v", err)
	}
	if err := s.Rename(ctx, "file", "/tmp/file"); err != nil {
		t.Error(err)
	}
	b.noTemporaries()
}

func TestNoSpace(t *testing.T) {
	b, s := newSession(t)
	mountTmpfs(t, b.workspace, "size=1m")
	b.write("file", "old", 0o644)
	err := s.WriteFile(ctx, "file", bytes.NewReader(make([]byte, 2<<20)), provider.WriteOptions{})
	if !errors.Is(err, provider.ErrNoSpace) || !strings.Contains(err.Error(), "no space left in /workspace") {
		t.Errorf("got %v", err)
	}
	if b.read("file") != "old" {
		t.Error("the file has changed")
	}
	b.noTemporaries()
	if err := s.WriteFile(ctx, "file", strings.NewReader("new"), provider.WriteOptions{}); err != nil {
		t.Errorf("there is room for it: %v", err)
	}
}

func TestUploadDownload(t *testing.T) {
	b, s := newSession(t)
	host := t.TempDir()
	for name, content := range map[string]string{"a": "A", "d/b": "B", "d/e/big": strings.Repeat("x", 3<<20)} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(host, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(host, name), []byte(content), 0o750); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("d/b", filepath.Join(host, "link")); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(tartree.Pack(ctx, w, host)) }()
	if err := s.Upload(ctx, "up/here", r); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("diff", "-r", "--no-dereference", host, b.path("up/here")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	back := t.TempDir()
	r, w = io.Pipe()
	go func() { w.CloseWithError(s.Download(ctx, "up/here", w)) }()
	if err := tartree.Unpack(ctx, r, back, tartree.Limits{}); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("diff", "-r", "--no-dereference", host, back).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if err := s.Download(ctx, "none", io.Discard); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("none: %v", err)
	}
	var one bytes.Buffer
	if err := s.Download(ctx, "up/here/a", &one); err != nil {
		t.Error(err)
	}
	if h, err := tar.NewReader(&one).Next(); err != nil || h.Name != "a" || h.Size != 1 {
		t.Errorf("a single file: %+v, %v", h, err)
	}
	full := errors.New("the disk is full")
	if err := s.Download(ctx, "up/here", &failingWriter{full}); !errors.Is(err, full) {
		t.Errorf("a failing writer: %v", err)
	}
	broken := errors.New("the source broke")
	if err := s.Upload(ctx, "x", &failing{broken}); !errors.Is(err, broken) {
		t.Errorf("a failing source: %v", err)
	}
	if err := s.Upload(ctx, "x", strings.NewReader("this is no tar stream, and longer than nothing")); err == nil || errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("no tar stream: %v", err)
	}
	var evil bytes.Buffer
	tw := tar.NewWriter(&evil)
	tw.WriteHeader(&tar.Header{Name: "../evil", Typeflag: tar.TypeReg})
	tw.Close()
	if err := s.Upload(ctx, "x", &evil); err == nil || !strings.Contains(err.Error(), `entry "../evil"`) {
		t.Errorf("an entry that leaves: %v", err)
	}
	if err := s.Ping(ctx); err != nil {
		t.Error(err)
	}
}

type failingWriter struct{ err error }

func (w *failingWriter) Write([]byte) (int, error) { return 0, w.err }

// TestSkills: changes under /skills go to a server of their own.
func TestSkills(t *testing.T) {
	b := newSandbox(t)
	skills, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	opened := 0
	s := b.session(agent.SessionConfig{Files: func(context.Context) (io.ReadWriteCloser, error) {
		opened++
		args := agent.FilesArgs(skills)
		return b.command(args[1:]...)
	}})
	if err := s.Adopt(ctx, b.stream()); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(ctx, "/skills/a/b.md", strings.NewReader("text"), provider.WriteOptions{Mode: 0o600}); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(filepath.Join(skills, "a/b.md")); err != nil || fi.Mode() != 0o644 {
		t.Errorf("%v, %v", fi, err)
	}
	for what, err := range map[string]error{
		"mkdir":  s.Mkdir(ctx, "/skills/x/y"),
		"rename": s.Rename(ctx, "/skills/a/b.md", "/skills/x/c.md"),
		"remove": s.Remove(ctx, "/skills/a"),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := os.Symlink("/etc", filepath.Join(skills, "etc")); err != nil {
		t.Fatal(err)
	}
	if err := s.WriteFile(ctx, "/skills/etc/x", strings.NewReader(""), provider.WriteOptions{}); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("through a link: %v", err)
	}
	if opened != 1 {
		t.Errorf("opened %d times", opened)
	}
	// The main server does not change /skills.
	plain := b.session(agent.SessionConfig{})
	if err := plain.WriteFile(ctx, "/skills/x", strings.NewReader(""), provider.WriteOptions{}); !errors.Is(err, provider.ErrUnsupported) {
		t.Errorf("without a server for it: %v", err)
	}
}

func BenchmarkWriteRead(b *testing.B) {
	_, s := newSession(b)
	for b.Loop() {
		if err := s.WriteFile(ctx, "f", strings.NewReader("hello"), provider.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
		if _, err := s.ReadFile(ctx, "f", provider.ReadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpload(b *testing.B) {
	_, s := newSession(b)
	b.SetBytes(64 << 20)
	for b.Loop() {
		if err := s.WriteFile(ctx, "f", io.LimitReader(zeros{}, 64<<20), provider.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDownload(b *testing.B) {
	box, s := newSession(b)
	box.write("f", strings.Repeat("x", 64<<20), 0o644)
	b.SetBytes(64 << 20)
	for b.Loop() {
		f, err := s.OpenFile(ctx, "f", provider.ReadOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, f); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
