package providertest

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capybara-hq/capyrun/provider"
)

func write(t testing.TB, sb provider.Sandbox, path, data string) {
	t.Helper()
	if err := sb.WriteFile(t.Context(), path, strings.NewReader(data), provider.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, sb provider.Sandbox, path string) string {
	t.Helper()
	f, err := sb.ReadFile(t.Context(), path, provider.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(f.Data)
}

func testFiles(t *testing.T, h Harness) {
	ctx := t.Context()
	sb := sandbox(t, h)

	t.Run("round trip", func(t *testing.T) {
		for _, path := range []string{"a", "/workspace/b/c/d", "/tmp/x/y", "name with 'quotes' and ünï", "-rf"} {
			write(t, sb, path, "text of "+path)
			wantString(t, path, read(t, sb, path), "text of "+path)
		}
		wantString(t, "relative is /workspace", run(t, sb, "cat /workspace/a; stat -c '%u %a' /workspace/a /workspace/b/c"), "text of a1000 644\n1000 755\n")
		write(t, sb, "a", "")
		wantString(t, "emptied", read(t, sb, "a"), "")
	})

	t.Run("mode", func(t *testing.T) {
		if err := sb.WriteFile(ctx, "script", strings.NewReader("echo ran"), provider.WriteOptions{Mode: 0o750}); err != nil {
			t.Fatal(err)
		}
		wantString(t, "mode", run(t, sb, "./script; stat -c %a script"), "ran\n750\n")
		write(t, sb, "script", "echo again")
		wantString(t, "kept", run(t, sb, "./script; stat -c %a script"), "again\n750\n")
		wantInvalid(t, sb.WriteFile(ctx, "x", strings.NewReader(""), provider.WriteOptions{Mode: fs.ModeSetuid | 0o755}), "mode")
	})

	t.Run("append", func(t *testing.T) {
		for _, s := range []string{"one\n", "two\n"} {
			if err := sb.WriteFile(ctx, "log", strings.NewReader(s), provider.WriteOptions{Append: true}); err != nil {
				t.Fatal(err)
			}
		}
		wantString(t, "log", read(t, sb, "log"), "one\ntwo\n")
	})

	t.Run("ranges and caps", func(t *testing.T) {
		write(t, sb, "digits", "0123456789")
		for _, c := range []struct {
			opts      provider.ReadOptions
			want      string
			truncated bool
		}{
			{provider.ReadOptions{}, "0123456789", false},
			{provider.ReadOptions{Max: 10}, "0123456789", false},
			{provider.ReadOptions{Max: 4}, "0123", true},
			{provider.ReadOptions{Offset: 4}, "456789", false},
			{provider.ReadOptions{Offset: 4, Max: 2}, "45", true},
			{provider.ReadOptions{Offset: 10}, "", false},
			{provider.ReadOptions{Offset: 100}, "", false},
		} {
			f, err := sb.ReadFile(ctx, "digits", c.opts)
			if err != nil || string(f.Data) != c.want || f.Truncated != c.truncated || f.Size != 10 {
				t.Errorf("%+v: %+v, %v", c.opts, f, err)
			}
		}
		_, err := sb.ReadFile(ctx, "digits", provider.ReadOptions{Offset: -1})
		wantInvalid(t, err, "offset")
		_, err = sb.ReadFile(ctx, "digits", provider.ReadOptions{Max: -1})
		wantInvalid(t, err, "max_bytes")
	})

	t.Run("large", func(t *testing.T) {
		data := pattern(40 << 20)
		digest := fmt.Sprintf("%x", sha256.Sum256(data))
		if err := sb.WriteFile(ctx, "large", bytes.NewReader(data), provider.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		wantString(t, "digest inside", run(t, sb, "sha256sum < large"), digest+"  -\n")
		r, err := sb.OpenFile(ctx, "large", provider.ReadOptions{})
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.New()
		if _, err := io.Copy(sum, r); err != nil {
			t.Error(err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		wantString(t, "digest outside", fmt.Sprintf("%x", sum.Sum(nil)), digest)
		r, err = sb.OpenFile(ctx, "large", provider.ReadOptions{Offset: 1 << 20, Max: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		part, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(part, data[1<<20:2<<20]) {
			t.Errorf("a range of %d bytes, %v", len(part), err)
		}
		r.Close()
		// One that is closed early must not disturb what follows.
		if r, err = sb.OpenFile(ctx, "large", provider.ReadOptions{}); err != nil {
			t.Fatal(err)
		}
		r.Close()
		wantString(t, "afterwards", read(t, sb, "digits"), "0123456789")
	})

	t.Run("atomic", func(t *testing.T) {
		write(t, sb, "precious", "old")
		broken := errors.New("the source broke")
		err := sb.WriteFile(ctx, "precious", io.MultiReader(bytes.NewReader(pattern(1<<20)), failing{broken}), provider.WriteOptions{})
		wantIs(t, err, broken)
		wantString(t, "after a failed write", read(t, sb, "precious"), "old")

		cause := errors.New("stop")
		wctx, cancel := context.WithCancelCause(ctx)
		r, w := io.Pipe()
		go func() {
			w.Write(pattern(1 << 20))
			cancel(cause) // the source stays open: only the cancel ends the write
		}()
		wantIs(t, sb.WriteFile(wctx, "precious", r, provider.WriteOptions{}), cause)
		w.Close()
		wantString(t, "after a cancelled write", read(t, sb, "precious"), "old")
		wantString(t, "left beside it", run(t, sb, "ls -A | grep -v -x -e precious | grep precious || true; ls -A | grep -i -e tmp -e '^\\.' || true"), "")
	})

	t.Run("not a regular file", func(t *testing.T) {
		run(t, sb, "mkfifo fifo; ln -s digits link; mkdir -p dir; ln -s /nowhere dangling")
		write(t, sb, "link", "through the link")
		wantString(t, "link", run(t, sb, "[ -L link ] && cat digits"), "through the link")
		wantIs(t, sb.WriteFile(ctx, "dir", strings.NewReader(""), provider.WriteOptions{}), provider.ErrIsDirectory)
		wantIs(t, sb.WriteFile(ctx, "digits/x", strings.NewReader(""), provider.WriteOptions{}), provider.ErrNotDirectory)
		_, err := sb.ReadFile(ctx, "dir", provider.ReadOptions{})
		wantIs(t, err, provider.ErrIsDirectory)
		_, err = sb.ReadFile(ctx, "missing", provider.ReadOptions{})
		wantIs(t, err, fs.ErrNotExist)
		_, err = sb.ReadFile(ctx, "dangling", provider.ReadOptions{})
		wantIs(t, err, fs.ErrNotExist)
		_, err = sb.OpenFile(ctx, "missing", provider.ReadOptions{})
		wantIs(t, err, fs.ErrNotExist)
		_, err = sb.ReadFile(ctx, "/proc/1/environ", provider.ReadOptions{})
		if err == nil {
			t.Error("the first process's environment can be read")
		}
		// Files without a size, and ones that never end, are bounded.
		if s := read(t, sb, "/proc/self/status"); !strings.Contains(s, "Name:") {
			t.Errorf("/proc/self/status: %q", s)
		}
		f, err := sb.ReadFile(ctx, "/dev/zero", provider.ReadOptions{Max: 1000})
		if err != nil || len(f.Data) != 1000 || !f.Truncated {
			t.Errorf("/dev/zero: %v", err)
		}
		// Nobody writes to this FIFO: a read must end with its context.
		rctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		defer cancel()
		if f, err := sb.ReadFile(rctx, "fifo", provider.ReadOptions{}); err == nil && len(f.Data) > 0 {
			t.Errorf("a FIFO without a writer gave %q", f.Data)
		}
		wantString(t, "afterwards", read(t, sb, "digits"), "through the link")
	})

	t.Run("stat", func(t *testing.T) {
		run(t, sb, "mkdir -p s/d; printf 12345 > s/f; chmod 640 s/f; touch -d '2020-01-02 03:04:05' s/f; ln -s f s/l; ln -s gone s/broken")
		for path, want := range map[string]provider.FileInfo{
			"s/f":  {Path: "/workspace/s/f", Kind: provider.KindFile, Size: 5, Mode: 0o640},
			"s/l":  {Path: "/workspace/s/l", Kind: provider.KindFile, Size: 5, Mode: 0o640},
			"/tmp": {Path: "/tmp", Kind: provider.KindDirectory, Mode: 0o777},
		} {
			got, err := sb.Stat(ctx, path)
			if err != nil {
				t.Error(err)
				continue
			}
			if want.Kind == provider.KindFile && got.ModTime.UTC().Format(time.DateTime) != "2020-01-02 03:04:05" {
				t.Errorf("%s: mtime %v", path, got.ModTime)
			}
			got.ModTime = time.Time{}
			if want.Kind == provider.KindDirectory {
				got.Size = 0
			}
			if diff := cmp.Diff(want, *got); diff != "" {
				t.Errorf("%s: %s", path, diff)
			}
		}
		_, err := sb.Stat(ctx, "s/missing")
		wantIs(t, err, fs.ErrNotExist)
		_, err = sb.Stat(ctx, "s/broken")
		wantIs(t, err, fs.ErrNotExist)
		_, err = sb.Stat(ctx, "s/f/x")
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, provider.ErrNotDirectory) {
			t.Errorf("%v", err)
		}
	})

	t.Run("list", func(t *testing.T) {
		run(t, sb, "mkdir -p t/b/c; touch t/a t/b/x t/b/c/y; ln -s b t/z; mkdir t/empty")
		for recursive, want := range map[bool][]string{
			false: {"a file", "b directory", "empty directory", "z symlink"},
			true:  {"a file", "b directory", "b/c directory", "b/c/y file", "b/x file", "empty directory", "z symlink"},
		} {
			list, err := sb.ReadDir(ctx, "t", recursive)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range list {
				got = append(got, fmt.Sprint(e.Path, " ", e.Kind))
				if e.Path == "z" && e.Target != "b" {
					t.Errorf("the link's target is %q", e.Target)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("recursive %v: %s", recursive, diff)
			}
		}
		_, err := sb.ReadDir(ctx, "t/a", false)
		wantIs(t, err, provider.ErrNotDirectory)
		_, err = sb.ReadDir(ctx, "t/missing", false)
		wantIs(t, err, fs.ErrNotExist)
	})

	t.Run("glob", func(t *testing.T) {
		for pattern, want := range map[string][]string{
			"t/*":            {"t/a", "t/b", "t/empty", "t/z"},
			"t/**/[xy]":      {"t/b/c/y", "t/b/x"},
			"/workspace/t/?": {"/workspace/t/a", "/workspace/t/b", "/workspace/t/z"},
			"t/no*":          nil,
		} {
			got, err := sb.Glob(ctx, pattern)
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
				t.Errorf("%s: %s", pattern, diff)
			}
		}
		_, err := sb.Glob(ctx, "t/[")
		wantInvalid(t, err, "pattern")
	})

	t.Run("mkdir, remove, rename", func(t *testing.T) {
		for range 2 {
			if err := sb.Mkdir(ctx, "m/n/o"); err != nil {
				t.Error(err)
			}
		}
		write(t, sb, "m/f", "x")
		err := sb.Mkdir(ctx, "m/f")
		if !errors.Is(err, provider.ErrNotDirectory) && !errors.Is(err, fs.ErrExist) {
			t.Errorf("mkdir over a file: %v", err)
		}
		write(t, sb, "m/g", "old")
		if err := sb.Rename(ctx, "m/f", "m/g"); err != nil {
			t.Error(err)
		}
		wantString(t, "renamed", read(t, sb, "m/g"), "x")
		if err := sb.Rename(ctx, "m/g", "/tmp/moved"); err != nil {
			t.Errorf("between file systems: %v", err)
		}
		wantString(t, "moved", read(t, sb, "/tmp/moved"), "x")
		wantIs(t, sb.Rename(ctx, "m/missing", "m/h"), fs.ErrNotExist)
		run(t, sb, "ln -s /etc m/etc")
		if err := sb.Remove(ctx, "m"); err != nil {
			t.Error(err)
		}
		wantString(t, "what the link led to", run(t, sb, "ls -d /etc m 2>/dev/null || true"), "/etc\n")
		wantIs(t, sb.Remove(ctx, "m"), fs.ErrNotExist)
	})

	t.Run("full", func(t *testing.T) {
		sb := create(t, h.New(t), provider.Spec{Image: h.Image, Memory: 64 << 20})
		err := sb.WriteFile(ctx, "/tmp/big", bytes.NewReader(make([]byte, 48<<20)), provider.WriteOptions{})
		wantIs(t, err, provider.ErrNoSpace)
		wantString(t, "left of it", run(t, sb, "ls -A /tmp"), "")
	})
}

func testPaths(t *testing.T, h Harness) {
	ctx := t.Context()
	sb := sandbox(t, h)
	run(t, sb, "ln -s /etc out; ln -s /etc/passwd outfile; ln -s /tmp in; mkdir d")

	t.Run("refused", func(t *testing.T) {
		for _, path := range []string{"", "a\x00b", "/" + strings.Repeat("x", 4096), "/etc/x", "../x", "/workspace/../etc/x", "/", "/workspacex/y", "out/x", "outfile", "/opt/capyrun/capyrun"} {
			for op, err := range map[string]error{
				"write":  sb.WriteFile(ctx, path, strings.NewReader(""), provider.WriteOptions{}),
				"mkdir":  sb.Mkdir(ctx, path+"/new"),
				"rename": sb.Rename(ctx, "d", path+"/new"),
				"upload": sb.Upload(ctx, path+"/new", emptyTar()),
			} {
				if path == "" && op != "write" || path == "outfile" && op != "write" {
					continue // "/new" makes another path of it
				}
				if !errors.Is(err, provider.ErrInvalid) {
					t.Errorf("%s %q: got %v, want it refused", op, path, err)
				}
			}
		}
		for _, path := range []string{"", "/workspace", "/tmp", ".", "/etc", "d/.."} {
			if err := sb.Remove(ctx, path); !errors.Is(err, provider.ErrInvalid) {
				t.Errorf("remove %q: got %v", path, err)
			}
		}
		_, err := sb.ReadFile(ctx, "", provider.ReadOptions{})
		wantInvalid(t, err, "path")
	})

	t.Run("links within", func(t *testing.T) {
		write(t, sb, "in/f", "x")
		wantString(t, "/tmp/f", run(t, sb, "cat /tmp/f"), "x")
		// Removing a link removes the link.
		if err := sb.Remove(ctx, "out"); err != nil {
			t.Error(err)
		}
	})

	t.Run("reads go anywhere", func(t *testing.T) {
		for _, path := range []string{"/etc/hostname", "../etc/hostname"} {
			wantString(t, path, read(t, sb, path), "sandbox\n")
		}
	})
}

func emptyTar() io.Reader {
	var b bytes.Buffer
	tar.NewWriter(&b).Close()
	return &b
}

func testTrees(t *testing.T, h Harness) {
	ctx := t.Context()
	sb := sandbox(t, h)

	t.Run("there and back", func(t *testing.T) {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		for _, e := range []struct {
			tar.Header
			data string
		}{
			{tar.Header{Typeflag: tar.TypeDir, Name: "dir/", Mode: 0o755}, ""},
			{tar.Header{Typeflag: tar.TypeReg, Name: "dir/file", Mode: 0o640, Size: 5}, "hello"},
			{tar.Header{Typeflag: tar.TypeReg, Name: "run", Mode: 0o755, Size: 8}, "echo ran"},
			{tar.Header{Typeflag: tar.TypeSymlink, Name: "link", Linkname: "dir/file", Mode: 0o777}, ""},
			{tar.Header{Typeflag: tar.TypeReg, Name: "owned", Mode: 0o644, Uid: 0, Gid: 0, Uname: "root"}, ""},
		} {
			if err := tw.WriteHeader(&e.Header); err != nil {
				t.Fatal(err)
			}
			io.WriteString(tw, e.data)
		}
		tw.Close()
		if err := sb.Upload(ctx, "up", &b); err != nil {
			t.Fatal(err)
		}
		wantString(t, "inside", run(t, sb, "cd up; cat link; ./run; readlink link; stat -c '%u %a' owned dir/file run"), "helloran\ndir/file\n1000 644\n1000 640\n1000 755\n")

		var back bytes.Buffer
		if err := sb.Download(ctx, "up", &back); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		tr := tar.NewReader(&back)
		for {
			hd, err := tr.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			data, _ := io.ReadAll(tr)
			got[strings.Trim(hd.Name, "/")] = fmt.Sprintf("%c %s%s", hd.Typeflag, data, hd.Linkname)
		}
		delete(got, ".")
		want := map[string]string{"dir": "5 ", "dir/file": "0 hello", "run": "0 echo ran", "link": "2 dir/file", "owned": "0 "}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		wantIs(t, sb.Download(ctx, "no/such", io.Discard), fs.ErrNotExist)
	})

	t.Run("hostile archives", func(t *testing.T) {
		for name, headers := range map[string][]tar.Header{
			"absolute":      {{Typeflag: tar.TypeReg, Name: "/tmp/evil"}},
			"parent":        {{Typeflag: tar.TypeReg, Name: "../evil"}},
			"hidden parent": {{Typeflag: tar.TypeReg, Name: "a/../../evil"}},
			"link out":      {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/tmp"}, {Typeflag: tar.TypeReg, Name: "l/evil"}},
			"relative link": {{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "../.."}, {Typeflag: tar.TypeReg, Name: "l/tmp/evil"}},
			"hard link":     {{Typeflag: tar.TypeLink, Name: "l", Linkname: "../../etc/passwd"}},
			"device":        {{Typeflag: tar.TypeChar, Name: "d"}},
			"fifo":          {{Typeflag: tar.TypeFifo, Name: "d"}},
		} {
			t.Run(name, func(t *testing.T) {
				var b bytes.Buffer
				tw := tar.NewWriter(&b)
				for _, hd := range headers {
					hd.Mode = 0o644
					if err := tw.WriteHeader(&hd); err != nil {
						t.Fatal(err)
					}
				}
				tw.Close()
				if err := sb.Upload(ctx, "target/sub", &b); err == nil {
					t.Error("it was unpacked")
				}
				wantString(t, "outside", run(t, sb, "find /tmp /workspace -name evil"), "")
			})
		}
	})

	t.Run("truncated archive", func(t *testing.T) {
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "f", Mode: 0o644, Size: 100000})
		tw.Write(make([]byte, 100000))
		tw.Close()
		if err := sb.Upload(ctx, "trunc", bytes.NewReader(b.Bytes()[:50000])); err == nil {
			t.Error("it was unpacked")
		}
	})
}

func testSkills(t *testing.T, h Harness) {
	ctx := t.Context()
	sb := sandbox(t, h)
	if err := sb.WriteFile(ctx, "/skills/a/skill.md", strings.NewReader("how to"), provider.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	wantString(t, "inside", run(t, sb, "cat /skills/a/skill.md; touch /skills/a/x 2>/dev/null || echo read-only; rm /skills/a/skill.md 2>/dev/null || echo read-only"), "how toread-only\nread-only\n")
	wantString(t, "read back", read(t, sb, "/skills/a/skill.md"), "how to")
	if err := sb.Mkdir(ctx, "/skills/b"); err != nil {
		t.Error(err)
	}
	if err := sb.Rename(ctx, "/skills/a/skill.md", "/skills/b/skill.md"); err != nil {
		t.Error(err)
	}
	wantString(t, "renamed", run(t, sb, "cat /skills/b/skill.md"), "how to")
	if err := sb.Remove(ctx, "/skills/b"); err != nil {
		t.Error(err)
	}
	wantString(t, "removed", run(t, sb, "ls /skills"), "a\n")
	for _, path := range []string{"/skills", "/skills/../etc/x"} {
		if err := sb.Remove(ctx, path); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("remove %s: %v", path, err)
		}
	}
	if err := sb.Rename(ctx, "/skills/a", "/workspace/a"); !errors.Is(err, provider.ErrInvalid) {
		t.Errorf("rename out of /skills: %v", err)
	}
}
