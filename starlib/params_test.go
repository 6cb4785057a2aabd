package starlib_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/capybara-hq/capyrun/starlib"
)

const paramsMain = `
def main(ref, jobs = 2, *, ratio = 0.5, fast = False, name = "x", tags = [], env = {}, pair = (1, 2), wait = time.second, any = None):
    return [ref, jobs, ratio, fast, name, tags, env, pair, wait, any]
`

func TestParams(t *testing.T) {
	text, err := starlib.ParseParams([]string{"ref=a=b", "jobs=0x10", "ratio=2", "fast=true", "name=", `tags=["a", 1]`, `env={"k": null}`, "pair=[3, 4.5]", "wait=1m", "any=5"})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		params starlib.Params
		want   []any
	}{
		"defaults": {
			starlib.Params{"ref": "main"},
			[]any{"main", int64(2), 0.5, false, "x", []any{}, map[string]any{}, []any{int64(1), int64(2)}, "1s", nil},
		},
		"text": {
			text,
			[]any{"a=b", int64(16), 2.0, true, "", []any{"a", int64(1)}, map[string]any{"k": nil}, []any{int64(3), 4.5}, "1m0s", "5"},
		},
		"Go values": {
			starlib.Params{
				"ref": 1, "jobs": uint8(3), "ratio": 1, "fast": true, "name": "n", "tags": []string{"t"}, "env": map[string]string{"a": "b"},
				"pair": []any{1, "x"}, "wait": 2 * time.Second, "any": []any{nil},
			},
			[]any{int64(1), int64(3), 1.0, true, "n", []any{"t"}, map[string]any{"a": "b"}, []any{int64(1), "x"}, "2s", []any{nil}},
		},
		"decoded JSON": {
			starlib.Params{"ref": json.Number("12345678901234567890"), "jobs": 4.0, "wait": 1.5, "any": json.Number("1.5")},
			[]any{json.Number("12345678901234567890"), int64(4), 0.5, false, "x", []any{}, map[string]any{}, []any{int64(1), int64(2)}, "1.5s", 1.5},
		},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := starlib.New(nil, starlib.Options{}).RunSource(t.Context(), "main.star", []byte(paramsMain), test.params)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(any(test.want), res.Value); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestParamErrors(t *testing.T) {
	for name, test := range map[string]struct {
		src    string
		params starlib.Params
		want   string
	}{
		"all at once": {
			"def main(ref, jobs = 2, fast = False, tags = []): pass",
			starlib.Params{"jbs": starlib.Text("1"), "jobs": starlib.Text("many"), "fast": starlib.Text("maybe"), "tags": starlib.Text("a,b")},
			`missing parameter "ref"
parameter "fast": "maybe" is not a bool: want true or false
unknown parameter "jbs" (did you mean "jobs"?)
parameter "jobs": "many" is not an int
parameter "tags": "a,b" is not a list: want JSON
main takes: ref (required), jobs (int, default 2), fast (bool, default False), tags (list, default a list of 0)`,
		},
		"Go values": {
			"def main(jobs = 2, name = ''): pass",
			starlib.Params{"jobs": "3", "name": make(chan int)},
			`parameter "jobs": got string "3", want int
parameter "name": a Go chan int has no Starlark form
main takes: jobs (int, default 2), name (string, default "")`,
		},
		"no parameters": {"def main(): pass", starlib.Params{"a": 1}, "unknown parameter \"a\"\nmain takes no parameters"},
		"no main":       {"x = 1", starlib.Params{"a": 1}, "the workflow has no function main, so it takes no parameters"},
		"fraction":      {"def main(n = 1): pass", starlib.Params{"n": 1.5}, "parameter \"n\": got float 1.5, want int\nmain takes: n (int, default 1)"},
		"json kind":     {"def main(d = {}): pass", starlib.Params{"d": starlib.Text("[1]")}, "parameter \"d\": \"[1]\" is a list, want a dict\nmain takes: d (dict, default a dict of 0)"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := starlib.New(nil, starlib.Options{}).RunSource(t.Context(), "main.star", []byte(test.src), test.params)
			if d := cmp.Diff(test.want, wantKind(t, err, starlib.KindParams).Msg); d != "" {
				t.Error(d)
			}
		})
	}
	for _, arg := range []string{"a", "=b", ""} {
		if _, err := starlib.ParseParams([]string{arg}); err == nil {
			t.Errorf("%q is accepted", arg)
		}
	}
	if _, err := starlib.ParseParams([]string{"a=1", "a=2"}); err == nil {
		t.Error("a parameter given twice is accepted")
	}
}

// Parameters of any name go to **kwargs.
func TestParamsKwargs(t *testing.T) {
	res, err := starlib.New(nil, starlib.Options{}).RunSource(t.Context(), "main.star", []byte("def main(a = 1, **more): return [a, more]"), starlib.Params{"b": starlib.Text("x")})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]any{int64(1), map[string]any{"b": "x"}}, res.Value); d != "" {
		t.Error(d)
	}
}

func TestResults(t *testing.T) {
	for src, want := range map[string]any{
		"x = 1":                              nil,
		"def main(): pass":                   nil,
		"def main(): return 1 << 100":        json.Number("1267650600228229401496703205376"),
		"def main(): return (1, [True])":     []any{int64(1), []any{true}},
		"def main(): return struct(a = 1)":   map[string]any{"a": int64(1)},
		"def main(): return time.second * 2": "2s",
		"def main(): return {'é': '\\x00'}":  map[string]any{"é": "\x00"},
	} {
		res, err := starlib.New(nil, starlib.Options{}).RunSource(t.Context(), "main.star", []byte(src), nil)
		if err != nil {
			t.Errorf("%s: %v", src, err)
		} else if d := cmp.Diff(want, res.Value); d != "" {
			t.Errorf("%s: %s", src, d)
		}
	}
	for src, want := range map[string]string{
		`def main(): return {"a": [1, 2, main]}`:                  `result["a"][2]: a function is not JSON`,
		`def main(): return {1: 2}`:                               `result: the key 1 is an int, and JSON has only string keys`,
		`def main(): return [float("nan")]`:                       `result[0]: nan is not a JSON number`,
		`def main(): return struct(x = b"y")`:                     `result.x: a bytes is not JSON`,
		`def main(): return set()`:                                `result: a set is not JSON`,
		"def main():\n  x = []\n  x.append(x)\n  return {'x': x}": `result["x"][0]: a list that contains itself`,
	} {
		_, err := starlib.New(nil, starlib.Options{}).RunSource(t.Context(), "main.star", []byte(src), nil)
		e := wantKind(t, err, starlib.KindScript)
		if got := e.Msg; !containsSuffix(got, want) {
			t.Errorf("%s: got %q, want %q", src, got, want)
		}
	}
}

func containsSuffix(s, suffix string) bool {
	return len(s) >= len(suffix) && s[len(s)-len(suffix):] == suffix
}

func TestDescribe(t *testing.T) {
	rt := starlib.New(nil, starlib.Options{FS: mapFS(map[string]string{
		"main.star": `"""Builds things.

    Indented.
"""
load("lib.star", "x")

def main(ref, jobs = -2, *, name = "ä" + x, tags = ["a", "b"], opt = None, **more):
    """Builds one thing.

    At length.

    Args:
        ref: what to build,
            in which state
        jobs (int): how many
        name: no default

    Returns:
        nothing
    """
    fail("is not run")
`,
		"bad.star":  "def main(:",
		"none.star": "x = 1",
	})})
	doc, err := rt.Describe("main.star")
	if err != nil {
		t.Fatal(err)
	}
	want := &starlib.Doc{
		Summary: "Builds things.\n\nIndented.", HasMain: true, Main: "Builds one thing.\n\nAt length.\n\nReturns:\n    nothing", AnyParam: true,
		Params: []starlib.ParamDoc{
			{Name: "ref", Required: true, Help: "what to build, in which state"},
			{Name: "jobs", Type: "int", Default: "-2", Help: "how many"},
			{Name: "name", Default: `"ä" + x`, KeywordOnly: true, Help: "no default"},
			{Name: "tags", Type: "list", Default: `["a", "b"]`, KeywordOnly: true},
			{Name: "opt", Default: "None", KeywordOnly: true},
		},
	}
	if d := cmp.Diff(want, doc); d != "" {
		t.Error(d)
	}
	if _, err := rt.Describe("bad.star"); err == nil {
		t.Error("no error")
	} else {
		wantKind(t, err, starlib.KindSyntax)
	}
	if doc, err := rt.Describe("none.star"); err != nil || doc.HasMain {
		t.Error(doc, err)
	}
}
