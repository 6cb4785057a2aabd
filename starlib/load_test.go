package starlib_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/capybara-hq/capyrun/starlib"
)

func mapFS(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, src := range files {
		out[name] = &fstest.MapFile{Data: []byte(src)}
	}
	return out
}

func TestLoad(t *testing.T) {
	var printed []string
	rt := starlib.New(nil, starlib.Options{
		FS: mapFS(map[string]string{
			"flows/main.star":   "load('../lib/a.star', 'a')\nload('../lib/b.star', b2 = 'b')\ndef main(): return [a, b2]",
			"lib/a.star":        "load('sub/c.star', 'c')\na = ['a', c]",
			"lib/b.star":        "load('sub/c.star', 'c')\nb = ['b', c]",
			"lib/sub/c.star":    "\uFEFFprint('c is run')\nc = ['c']",
			"flows/freeze.star": "load('../lib/a.star', 'a')\na.append(1)",
		}),
		Print: func(line string) { printed = append(printed, line) },
	})
	res, err := rt.RunFile(t.Context(), "flows/main.star", nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []any{[]any{"a", []any{"c"}}, []any{"b", []any{"c"}}}
	if d := cmp.Diff(want, res.Value); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"c is run"}, printed); d != "" {
		t.Error(d)
	}
	_, err = rt.RunFile(t.Context(), "flows/freeze.star", nil)
	if e := wantKind(t, err, starlib.KindScript); !strings.Contains(e.Msg, "frozen list") {
		t.Error(e.Msg)
	}
}

func TestLoadErrors(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		kind  starlib.Kind
		msg   string
		where string
	}{
		"cycle": {
			map[string]string{"main.star": "load('a.star', 'x')", "a.star": "load('d/b.star', 'x')", "d/b.star": "\nload('../a.star', 'x')"},
			starlib.KindLoad, "the modules load each other: a.star -> d/b.star -> a.star", "d/b.star:2:1",
		},
		"itself": {
			map[string]string{"main.star": "load('main.star', 'x')"},
			starlib.KindLoad, "the modules load each other: main.star -> main.star", "main.star:1:1",
		},
		"missing": {
			map[string]string{"main.star": "load('no.star', 'x')"},
			starlib.KindLoad, "cannot load no.star: there is no no.star: file does not exist", "main.star:1:1",
		},
		"outside": {
			map[string]string{"d/main.star": "load('../../x.star', 'x')"},
			starlib.KindLoad, "cannot load ../../x.star: it is outside the workflow's directory", "d/main.star:1:1",
		},
		"absolute": {
			map[string]string{"main.star": "load('/x.star', 'x')"},
			starlib.KindLoad, "cannot load /x.star: the name of a module is relative to the file that loads it", "main.star:1:1",
		},
		"other file": {
			map[string]string{"main.star": "load('x.txt', 'x')", "x.txt": "x = 1"},
			starlib.KindLoad, "cannot load x.txt: the name of a module ends in .star", "main.star:1:1",
		},
		"no such name": {
			map[string]string{"main.star": "load('x.star', 'helpr')", "x.star": "helper = 1"},
			starlib.KindLoad, "load: name helpr not found in module x.star (did you mean helper?)", "main.star:1:1",
		},
		"no such name further in": {
			map[string]string{"main.star": "load('a.star', 'x')", "a.star": "load('b.star', 'nope')", "b.star": "x = 1"},
			starlib.KindLoad, "cannot load a.star: load: name nope not found in module b.star", "a.star:1:1",
		},
		"directory": {
			map[string]string{"main.star": "load('d.star', 'x')", "d.star/x": ""},
			starlib.KindLoad, "cannot load d.star: read d.star: it is a directory", "main.star:1:1",
		},
		"syntax": {
			map[string]string{"main.star": "load('x.star', 'x')", "x.star": "x = 1\ny = ="},
			starlib.KindSyntax, "got '=', want primary expression", "x.star:2:5",
		},
		"script": {
			map[string]string{"main.star": "load('x.star', 'x')", "x.star": "x = 1 // 0"},
			starlib.KindScript, "cannot load x.star: floored division by zero", "x.star:1:7",
		},
		"within a function": {
			map[string]string{"main.star": "def f():\n  load('x.star', 'x')", "x.star": "x = 1"},
			starlib.KindSyntax, "load statement within a function", "main.star:2:3",
		},
	} {
		t.Run(name, func(t *testing.T) {
			main := "main.star"
			if test.files[main] == "" {
				main = "d/main.star"
			}
			_, err := starlib.New(nil, starlib.Options{FS: mapFS(test.files)}).RunFile(t.Context(), main, nil)
			e := wantKind(t, err, test.kind)
			if e.Msg != test.msg {
				t.Errorf("got  %s\nwant %s", e.Msg, test.msg)
			}
			if last := e.Backtrace[len(e.Backtrace)-1].String(); last != test.where {
				t.Errorf("got it at %s, want %s\n%s", last, test.where, rendered(e))
			}
		})
	}
}

// tree makes a directory of files; a value that begins with -> is a link.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(content, "->"); ok {
			err = os.Symlink(target, file)
		} else {
			err = os.WriteFile(file, []byte(content), 0o666)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestNothingLeadsOutOfTheDirectory(t *testing.T) {
	dir := tree(t, map[string]string{
		"secret.star":     "x = 1",
		"allowed/a.txt":   "allowed",
		"flow/in.star":    "x = 'inside'",
		"flow/link.star":  "->in.star",
		"flow/out.star":   "->../secret.star",
		"flow/outdir":     "->..",
		"flow/abs.star":   "->" + filepath.Join(os.TempDir(), "x.star"),
		"flow/good.star":  "load('link.star', 'x')\nassert.eq(host.read('link.star'), \"x = 'inside'\")\nassert.eq(host.glob('*dir/*'), [])\ndef main(): return x",
		"flow/bad1.star":  "load('out.star', 'x')",
		"flow/bad2.star":  "load('outdir/secret.star', 'x')",
		"flow/bad3.star":  "load('../secret.star', 'x')",
		"flow/bad4.star":  "host.read('out.star')",
		"flow/bad5.star":  "host.read('outdir/secret.star')",
		"flow/bad6.star":  "host.read('../secret.star')",
		"flow/bad7.star":  "load('abs.star', 'x')",
		"flow/bad8.star":  "host.glob('../*')",
		"flow/bad9.star":  "host.write('../x', 'y')",
		"flow/bad10.star": "host.write('link/x', 'y')",
		"flow/bad11.star": "assert.golden('out.star', 'x')",
		"flow/read.star":  "assert.eq(host.read('../allowed/a.txt'), 'allowed')\nassert.eq(host.glob('../allowed/*'), ['../allowed/a.txt'])\nhost.write('d/f', 'written')",
	})
	out := tree(t, map[string]string{"link": "->" + dir})
	rt := starlib.New(nil, starlib.Options{AllowRead: []string{filepath.Join(dir, "allowed")}, Out: out, UpdateGolden: true})
	for _, name := range []string{"good", "read"} {
		if _, err := rt.RunFile(t.Context(), filepath.Join(dir, "flow", name+".star"), nil); err != nil {
			t.Error(err)
		}
	}
	for i := 1; i <= 11; i++ {
		name := filepath.Join(dir, "flow", "bad"+string(rune('0'+i%10))+".star")
		if i >= 10 {
			name = filepath.Join(dir, "flow", "bad1"+string(rune('0'+i-10))+".star")
		}
		if _, err := rt.RunFile(t.Context(), name, nil); err == nil {
			t.Errorf("%s succeeded", name)
		} else {
			t.Log(err)
		}
	}
	if data, err := os.ReadFile(filepath.Join(out, "d/f")); err != nil || string(data) != "written" {
		t.Errorf("%q, %v", data, err)
	}
	if data, _ := os.ReadFile(filepath.Join(dir, "secret.star")); string(data) != "x = 1" {
		t.Errorf("the file outside is now %q", data)
	}
}

func TestMissingFile(t *testing.T) {
	_, err := starlib.New(nil, starlib.Options{}).RunFile(t.Context(), "testdata/nothing.star", nil)
	if e := wantKind(t, err, starlib.KindLoad); e.Msg != "testdata/nothing.star: no such file" || !errors.Is(err, fs.ErrNotExist) {
		t.Error(e.Msg)
	}
	_, err = starlib.New(nil, starlib.Options{}).RunFile(t.Context(), "testdata", nil)
	wantKind(t, err, starlib.KindLoad)
	_, err = starlib.New(nil, starlib.Options{}).RunFile(t.Context(), "no/such/dir/x.star", nil)
	wantKind(t, err, starlib.KindLoad)
}

// The file that the caller names may be a link; what it loads is beside the link.
func TestMainIsALink(t *testing.T) {
	dir := tree(t, map[string]string{"real/main.star": "load('x.star', 'x')\ndef main(): return x", "flow/main.star": "->../real/main.star", "flow/x.star": "x = 1"})
	res, err := starlib.New(nil, starlib.Options{}).RunFile(t.Context(), filepath.Join(dir, "flow/main.star"), nil)
	if err != nil || res.Value != int64(1) {
		t.Fatal(res, err)
	}
}

func TestTransfers(t *testing.T) {
	dir := tree(t, map[string]string{
		"src/a.txt":    "a",
		"src/sub/b.sh": "b",
		"link":         "->src",
		"escape":       "->/etc",
	})
	out := filepath.Join(t.TempDir(), "new")
	fake := starlibtestNew(t)
	rt := starlib.New(fake, starlib.Options{Out: out})
	_, err := rt.RunSource(t.Context(), filepath.Join(dir, "main.star"), []byte(`
sb = sandbox.create()
sb.upload("src")
assert.eq(sb.read("sub/b.sh"), "b")
sb.upload("link", "other")
assert.eq(sb.read("other/sub/b.sh"), "b")
sb.upload("src/a.txt")
sb.upload("src/a.txt", "renamed.txt")
assert.eq(sb.read("renamed.txt"), "a")
sb.download("other", "tree")
sb.download("renamed.txt")
sb.download("a.txt", "deep/er.txt")
assert.fails(lambda: sb.upload("escape"), "outside")
assert.fails(lambda: sb.upload("nothing"), "no such file")
assert.fails(lambda: sb.download("nothing"), "not exist")
assert.fails(lambda: sb.download("a.txt", "../x"), "outside the output directory")
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, name := range []string{"tree/a.txt", "tree/sub/b.sh", "renamed.txt", "deep/er.txt"} {
		data, err := os.ReadFile(filepath.Join(out, name))
		if err != nil {
			t.Error(err)
		}
		got[name] = string(data)
	}
	want := map[string]string{"tree/a.txt": "a", "tree/sub/b.sh": "b", "renamed.txt": "a", "deep/er.txt": "a"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// An embedded workflow uploads from its own files.
func TestUploadFromFS(t *testing.T) {
	fake := starlibtestNew(t)
	rt := starlib.New(fake, starlib.Options{FS: mapFS(map[string]string{
		"main.star": "sb = sandbox.create()\nsb.upload('data', 'd')\nassert.eq(sb.read('d/x/y'), 'content')",
		"data/x/y":  "content",
	})})
	if _, err := rt.RunFile(t.Context(), "main.star", nil); err != nil {
		t.Fatal(err)
	}
}
