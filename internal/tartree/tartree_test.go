package tartree

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
)

var ctx = context.Background()

// stream makes a tar stream of headers; a file's content is its Linkname.
func stream(t testing.TB, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, h := range headers {
		content := ""
		if h.Typeflag == tar.TypeReg {
			content, h.Linkname = h.Linkname, ""
			h.Size = int64(len(content))
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := tw.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		io.WriteString(tw, content)
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func file(name, content string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Linkname: content}
}
func dir(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}
func symlink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
}
func hardlink(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}
}

// arena is a target directory with something beside it that must not change.
type arena struct{ dir, outside string }

func newArena(t testing.TB) *arena {
	t.Helper()
	base := t.TempDir()
	a := &arena{dir: filepath.Join(base, "target"), outside: filepath.Join(base, "outside")}
	for _, d := range []string{a.dir, a.outside} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(a.outside, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

// check fails where anything outside has changed or can be reached by a link.
func (a *arena) check(t testing.TB) {
	t.Helper()
	entries, err := os.ReadDir(a.outside)
	if err != nil || len(entries) != 1 {
		t.Errorf("outside has changed: %v, %v", entries, err)
	}
	if b, err := os.ReadFile(filepath.Join(a.outside, "secret")); err != nil || string(b) != "secret" {
		t.Errorf("the secret has changed: %q, %v", b, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(a.dir)); err != nil || len(entries) != 2 {
		t.Errorf("something was written beside the target: %v, %v", entries, err)
	}
	secret, err := os.Stat(filepath.Join(a.outside, "secret"))
	if err != nil {
		t.Fatal(err)
	}
	filepath.WalkDir(a.dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if fi, err := os.Stat(p); err == nil && os.SameFile(fi, secret) {
			t.Errorf("%s is the secret", p)
		}
		fi, err := os.Lstat(p)
		if err == nil && fi.Mode()&(fs.ModeSetuid|fs.ModeSetgid|fs.ModeSticky|fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
			t.Errorf("%s is %v", p, fi.Mode())
		}
		if real, err := filepath.EvalSymlinks(p); err == nil && real != a.dir && !strings.HasPrefix(real, a.dir+"/") {
			t.Errorf("%s leads to %s", p, real)
		}
		return nil
	})
}

func TestAttacks(t *testing.T) {
	long := strings.Repeat("d/", 2100) + "f"
	for _, tt := range []struct {
		name    string
		headers []tar.Header
		want    string // in the error; empty: accepted, and harmless
	}{
		{"absolute", []tar.Header{file("/outside/x", "")}, `entry "/outside/x": refused: an absolute name`},
		{"parent", []tar.Header{file("../outside/x", "")}, `".."`},
		{"parent inside", []tar.Header{file("a/../../outside/x", "")}, `".."`},
		{"parent at the end", []tar.Header{dir("a/..")}, `".."`},
		{"parent only", []tar.Header{dir("..")}, `".."`},
		{"dot file", []tar.Header{file(".", "x")}, "the directory itself"},
		{"dot link", []tar.Header{symlink(".", "x")}, "the directory itself"},
		{"backslashes are no separators", []tar.Header{file(`..\outside\x`, "")}, ""},
		{"long name", []tar.Header{file(long, "")}, "4096"},
		{"too deep", []tar.Header{dir(strings.Repeat("d/", 256))}, "a name of more than 255 elements"},
		{"hard link to what is too deep", []tar.Header{hardlink("l", strings.Repeat("d/", 255)+"f")}, "a name of more than 255 elements"},
		{"long element", []tar.Header{file(strings.Repeat("x", 300), "")}, "255"},
		{"absolute symlink", []tar.Header{symlink("l", "/outside")}, "absolute"},
		{"symlink out", []tar.Header{symlink("l", "../outside")}, "leads outside"},
		{"symlink out of a directory", []tar.Header{dir("d"), symlink("d/l", "../../outside")}, "leads outside"},
		{"symlink up", []tar.Header{symlink("l", "..")}, "leads outside"},
		{"symlink out and in again", []tar.Header{symlink("l", "../target/x")}, "leads outside"},
		{"symlink by way of a name", []tar.Header{symlink("l", "a/../../outside")}, "leads outside"},
		{"symlink to the root", []tar.Header{dir("d"), symlink("d/l", "..")}, ""},
		{"symlinks that add up", []tar.Header{dir("d"), symlink("d/up", ".."), symlink("l", "d/up/../outside")}, "leads outside"},
		{"symlink to nothing", []tar.Header{symlink("l", "none")}, ""},
		{"empty symlink", []tar.Header{symlink("l", "")}, "invalid link target"},
		{"symlink loop", []tar.Header{symlink("a", "b"), symlink("b", "a"), file("a/x", "")}, "symbolic link"},
		{"through a symlink", []tar.Header{dir("d"), symlink("l", "d"), file("l/x", "")}, `"l" on its way is a symbolic link`},
		{"directory through a symlink", []tar.Header{dir("d"), symlink("l", "d"), dir("l/x")}, "symbolic link"},
		{"symlink through a symlink", []tar.Header{dir("a/b"), symlink("l", "a/b"), symlink("l/m", "../..")}, "symbolic link"},
		{"directory over a symlink", []tar.Header{dir("d"), symlink("l", "d"), dir("l")}, "symbolic link"},
		{"directory replaced by a symlink", []tar.Header{dir("d"), symlink("d", "e"), file("d/x", "")}, "replace a directory"},
		{"file over a symlink", []tar.Header{file("f", "old"), symlink("l", "f"), file("l", "new")}, ""},
		{"file over a hard link", []tar.Header{file("f", "old"), hardlink("l", "f"), file("l", "new")}, ""},
		{"through a file", []tar.Header{file("f", ""), file("f/x", "")}, "no directory"},
		{"hard link out", []tar.Header{hardlink("l", "../outside/secret")}, `".."`},
		{"absolute hard link", []tar.Header{hardlink("l", "/etc/passwd")}, "absolute"},
		{"hard link through a symlink", []tar.Header{dir("d"), file("d/f", ""), symlink("s", "d"), hardlink("l", "s/f")}, "is no file"},
		{"hard link to a symlink", []tar.Header{dir("d"), symlink("d/s", ".."), hardlink("l", "d/s")}, "is no file"},
		{"hard link to a directory", []tar.Header{dir("d"), hardlink("l", "d")}, "is no file"},
		{"hard link to nothing", []tar.Header{hardlink("l", "none")}, "no such file"},
		{"hard link to itself", []tar.Header{file("f", "x"), hardlink("f", "f")}, ""},
		{"character device", []tar.Header{{Name: "d", Typeflag: tar.TypeChar}}, "neither"},
		{"block device", []tar.Header{{Name: "d", Typeflag: tar.TypeBlock}}, "neither"},
		{"FIFO", []tar.Header{{Name: "d", Typeflag: tar.TypeFifo}}, "neither"},
		{"unknown type", []tar.Header{{Name: "d", Typeflag: 'Z'}}, "neither"},
		{"setuid", []tar.Header{{Name: "f", Typeflag: tar.TypeReg, Mode: 0o7755}, {Name: "d", Typeflag: tar.TypeDir, Mode: 0o7777}}, ""},
		{"unwritable directory first", []tar.Header{{Name: "d", Typeflag: tar.TypeDir, Mode: 0o500}, file("d/f", "x")}, ""},
		{"twice", []tar.Header{file("f", "1"), file("f", "2"), dir("d"), dir("d")}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := newArena(t)
			err := Unpack(ctx, stream(t, tt.headers...), a.dir, Limits{})
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if e := new(EntryError); err != nil && !errors.As(err, &e) {
				t.Errorf("the error names no entry: %v", err)
			}
			a.check(t)
		})
	}
}

// TestDeep unpacks a chain of directories, each an entry of its own, and many
// files at its end and beside it in turn: the work for an entry must not grow
// with more than its depth.
func TestDeep(t *testing.T) {
	a := newArena(t)
	var headers []tar.Header
	chain := ""
	for range 254 {
		chain += "d/"
		headers = append(headers, dir(chain))
	}
	for i := range 50 {
		name := fmt.Sprint("f", i)
		headers = append(headers, file(chain+name, "x"), file("beside/"+name, "x"), hardlink("d/"+name, chain+name))
	}
	headers = append(headers, file(strings.Repeat("new/", 254)+"f", "x"))
	if err := Unpack(ctx, stream(t, headers...), a.dir, Limits{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{chain + "f49", "beside/f49", "d/f49", strings.Repeat("new/", 254) + "f"} {
		if b, err := os.ReadFile(filepath.Join(a.dir, name)); err != nil || string(b) != "x" {
			t.Errorf("%.20s: %q, %v", name, b, err)
		}
	}
}

func TestCommon(t *testing.T) {
	for _, tt := range [][3]string{
		{"", "a", ""}, {"a", "a", "a"}, {"a/b", "a", "a"}, {"a", "a/b", "a"}, {"a/b", "a/c", "a"},
		{"ab", "a", ""}, {"a", "ab", ""}, {"a/bc", "a/b", "a"}, {"a/b/c", "a/b/d/e", "a/b"}, {"x", "y", ""},
	} {
		if got := common(tt[0], tt[1]); got != tt[2] {
			t.Errorf("%q, %q: %q, want %q", tt[0], tt[1], got, tt[2])
		}
	}
}

// TestExistingLinks: links that are there before are replaced, not followed.
func TestExistingLinks(t *testing.T) {
	a := newArena(t)
	secret := filepath.Join(a.outside, "secret")
	if err := errors.Join(os.Symlink(secret, filepath.Join(a.dir, "s")), os.Link(secret, filepath.Join(a.dir, "h")), os.Symlink(a.outside, filepath.Join(a.dir, "d"))); err != nil {
		t.Fatal(err)
	}
	if err := Unpack(ctx, stream(t, file("s", "new"), file("h", "new")), a.dir, Limits{}); err != nil {
		t.Error(err)
	}
	if err := Unpack(ctx, stream(t, file("d/x", "new")), a.dir, Limits{}); !errors.Is(err, ErrRefused) {
		t.Errorf("through a link: %v", err)
	}
	if err := Unpack(ctx, stream(t, symlink("d", "x")), a.dir, Limits{}); err != nil {
		t.Error(err)
	}
	a.check(t)
	for _, name := range []string{"s", "h"} {
		if b, err := os.ReadFile(filepath.Join(a.dir, name)); err != nil || string(b) != "new" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		name    string
		limits  Limits
		headers []tar.Header
		want    string
	}{
		{"bytes", Limits{Bytes: 5}, []tar.Header{file("a", "123"), file("b", "456")}, `entry "b": refused: the files are too large together`},
		{"bytes fit", Limits{Bytes: 6}, []tar.Header{file("a", "123"), file("b", "456")}, ""},
		{"entries", Limits{Entries: 2}, []tar.Header{dir("a"), dir("b"), dir("c")}, `entry "c": refused: too many entries`},
		{"entries fit", Limits{Entries: 3}, []tar.Header{dir("a"), dir("b"), dir("c")}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := Unpack(ctx, stream(t, tt.headers...), t.TempDir(), tt.limits)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestTruncated(t *testing.T) {
	whole := stream(t, dir("d"), file("d/f", strings.Repeat("x", 2000)), symlink("l", "d")).Bytes()
	dst := t.TempDir()
	for n := range len(whole) - 1024 { // the last two blocks are the end mark
		if err := Unpack(ctx, bytes.NewReader(whole[:n]), dst, Limits{}); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatalf("%d bytes of %d: %v", n, len(whole), err)
		}
	}
	if err := Unpack(ctx, bytes.NewReader(append(whole, "trailing"...)), t.TempDir(), Limits{}); err == nil {
		t.Error("data after the end is accepted")
	}
	if err := Unpack(ctx, bytes.NewReader(append(whole, make([]byte, 9000)...)), t.TempDir(), Limits{}); err != nil {
		t.Errorf("padding: %v", err)
	}
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancelCause(ctx)
	cause := errors.New("enough")
	cancel(cause)
	if err := Unpack(ctx, stream(t, file("f", "x")), t.TempDir(), Limits{}); !errors.Is(err, cause) {
		t.Errorf("Unpack: %v", err)
	}
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Pack(ctx, io.Discard, src); !errors.Is(err, cause) {
		t.Errorf("Pack: %v", err)
	}
}

func TestRoundTrip(t *testing.T) {
	src := t.TempDir()
	when := time.Date(2001, 2, 3, 4, 5, 6, 789000000, time.UTC)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(src, "d/empty"), 0o755))
	must(os.Mkdir(filepath.Join(src, "locked"), 0o755))
	for name, mode := range map[string]fs.FileMode{"f": 0o600, "d/x": 0o755, "d/ro": 0o444, "weird \n\xff": 0o640, "locked/f": 0o644, strings.Repeat("n", 200): 0o644} {
		must(os.WriteFile(filepath.Join(src, name), []byte(strings.Repeat(name, 10000)), 0o644))
		must(os.Chmod(filepath.Join(src, name), mode))
		must(os.Chtimes(filepath.Join(src, name), when, when))
	}
	must(os.Chmod(filepath.Join(src, "locked"), 0o555))
	t.Cleanup(func() { os.Chmod(filepath.Join(src, "locked"), 0o755) })
	must(os.Symlink("d/x", filepath.Join(src, "link")))
	must(os.Symlink("none", filepath.Join(src, "d/dangling")))
	must(os.Symlink("..", filepath.Join(src, "d/up")))
	must(syscall.Mkfifo(filepath.Join(src, "fifo"), 0o600))
	must(os.Chtimes(filepath.Join(src, "d"), when, when))

	var b bytes.Buffer
	must(Pack(ctx, &b, src))
	dst := t.TempDir()
	t.Cleanup(func() { os.Chmod(filepath.Join(dst, "locked"), 0o755) })
	must(Unpack(ctx, bytes.NewReader(b.Bytes()), dst, Limits{}))
	must(os.Remove(filepath.Join(src, "fifo")))
	list := func(dir string) string {
		out, err := exec.Command("find", dir, "-mindepth", "1", "-printf", `%P %y %m %s %T@ %l\n`, "-type", "f", "-exec", "cksum", "{}", ";").Output()
		must(err)
		lines := strings.Split(strings.ReplaceAll(string(out), dir, ""), "\n")
		for i, l := range lines {
			f := strings.Fields(l)
			if len(f) > 4 && (f[1] == "l" || f[1] == "d" && f[0] != "d") {
				lines[i] = strings.Replace(l, f[4], "", 1) // the time of a link cannot be set, that of others is today's
			}
		}
		return sorted(lines)
	}
	if got, want := list(dst), list(src); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	// Again, over itself.
	must(Unpack(ctx, bytes.NewReader(b.Bytes()), dst, Limits{}))
	tr := tar.NewReader(&b)
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		must(err)
		if h.Uid != 0 || h.Gid != 0 || h.Uname != "" || h.Gname != "" {
			t.Errorf("%s tells an owner: %+v", h.Name, h)
		}
	}
}

func sorted(lines []string) string {
	cmd := exec.Command("sort")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	out, _ := cmd.Output()
	return string(out)
}

func TestPackSingleFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "f")
	if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "l")
	if err := os.Symlink("f", link); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{name: "f", link: "l"} {
		var b bytes.Buffer
		if err := Pack(ctx, &b, path); err != nil {
			t.Fatal(err)
		}
		if h, err := tar.NewReader(&b).Next(); err != nil || h.Name != want || h.Typeflag != tar.TypeReg || h.Size != 1 {
			t.Errorf("%+v, %v", h, err)
		}
	}
	if err := Pack(ctx, io.Discard, filepath.Join(dir, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := Pack(ctx, io.Discard, "/dev/null"); err == nil {
		t.Error("a device was packed")
	}
}

func TestForeignStreams(t *testing.T) {
	src := t.TempDir()
	if err := os.MkdirAll(filepath.Join(src, "a/b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "a/b/f"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(src, "a/b/f"), filepath.Join(src, "hard")); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"gnu", "pax", "ustar", "v7"} {
		out, err := exec.Command("tar", "-C", src, "--format="+format, "-c", ".").Output()
		if err != nil {
			t.Fatal(err)
		}
		dst := t.TempDir()
		if err := Unpack(ctx, bytes.NewReader(out), dst, Limits{}); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		if out, err := exec.Command("diff", "-r", src, dst).CombinedOutput(); err != nil {
			t.Errorf("%s: %s", format, out)
		}
	}
}

func TestReadable(t *testing.T) {
	dst := t.TempDir()
	headers := []tar.Header{{Name: "d", Typeflag: tar.TypeDir, Mode: 0o700}, {Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o600}, {Name: "x", Typeflag: tar.TypeReg, Mode: 0o711}}
	if err := Unpack(ctx, stream(t, headers...), dst, Limits{Readable: true}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{"d": 0o755 | fs.ModeDir, "d/f": 0o644, "x": 0o755} {
		if fi, err := os.Stat(filepath.Join(dst, name)); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(stream(f, dir("d"), file("d/f", "content"), symlink("d/l", "f"), hardlink("h", "d/f")).Bytes())
	f.Add(stream(f, symlink("l", "."), file("l/x", "y")).Bytes())
	f.Add(stream(f, dir("d"), symlink("d/up", ".."), symlink("m", "d/up"), file("m/x", "y")).Bytes())
	f.Add(stream(f, file("a", "1"), tar.Header{Name: "p", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"SCHILY.xattr.user.x": "y"}}).Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		a := newArena(t)
		Unpack(ctx, bytes.NewReader(data), a.dir, Limits{Bytes: 1 << 20, Entries: 100})
		a.check(t)
		filepath.WalkDir(a.dir, func(p string, e fs.DirEntry, err error) error {
			os.Chmod(p, 0o700) // so that the directory can be removed
			return nil
		})
	})
}

// FuzzTwoEntries explores how two entries with chosen names work together,
// which random bytes do not come to.
func FuzzTwoEntries(f *testing.F) {
	types := []byte{tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink}
	f.Add(byte(2), "l", "d/..", byte(0), "l/x", "y")
	f.Add(byte(1), "d", "", byte(2), "d/l", "../d")
	f.Fuzz(func(t *testing.T, t1 byte, n1, l1 string, t2 byte, n2, l2 string) {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, h := range []tar.Header{
			{Name: "d", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "d/up", Typeflag: tar.TypeSymlink, Linkname: ".."},
			{Name: n1, Linkname: l1, Typeflag: types[int(t1)%len(types)], Mode: 0o755},
			{Name: n2, Linkname: l2, Typeflag: types[int(t2)%len(types)], Mode: 0o755},
		} {
			if tw.WriteHeader(&h) != nil {
				return
			}
		}
		tw.Close()
		a := newArena(t)
		Unpack(ctx, &b, a.dir, Limits{})
		a.check(t)
	})
}

func TestErrorsAreShort(t *testing.T) {
	err := &EntryError{Name: strings.Repeat("x", 5000), Err: fmt.Errorf("why")}
	if len(err.Error()) > 400 {
		t.Errorf("%d bytes", len(err.Error()))
	}
}
