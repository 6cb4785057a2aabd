package starlib

import (
	"io/fs"
	"strings"
	"testing"

	starjson "go.starlark.net/lib/json"
	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// A module's path never leaves the directory.
func FuzzModulePath(f *testing.F) {
	f.Add("a/b.star", "../c.star")
	f.Add("b.star", "../../c.star")
	f.Add("b.star", "./x/../../y.star")
	f.Add("a/b/c.star", "..//../d.star")
	f.Fuzz(func(t *testing.T, from, name string) {
		if !fs.ValidPath(from) {
			return
		}
		file, err := modulePath(from, name)
		if err != nil {
			return
		}
		if !fs.ValidPath(file) || !strings.HasSuffix(file, ".star") || strings.ContainsAny(file, "\\\x00") {
			t.Errorf("%q from %q is %q", name, from, file)
		}
	})
}

// A parameter given as text is refused or has the type of the default.
func FuzzParamText(f *testing.F) {
	for _, text := range []string{"", "1", "-0x10", "1e309", "true", "[1, {}]", `{"a": [null]}`, "1m", strings.Repeat("[", 20000)} {
		f.Add(text)
	}
	defaults := []starlark.Value{
		starlark.None, starlark.False, starlark.MakeInt(1), starlark.Float(1), starlark.String(""),
		starlark.NewList(nil), starlark.NewDict(0), starlark.Tuple{}, script.NewRecord("r", starlark.StringDict{}, func() string {
			return "r"
		}),
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, def := range defaults {
			v, err := paramValue(Text(text), def)
			if err == nil && def != starlark.None && v.Type() != def.Type() {
				t.Errorf("%q became a %s, not a %s", text, v.Type(), def.Type())
			}
		}
	})
}

// The measured depth of a JSON text is not less than what the decoder finds.
func FuzzNestedJSON(f *testing.F) {
	for _, text := range []string{`[[]]`, `{"[": [1]}`, `["\"[", [[2]]]`, `]][[`} {
		f.Add(text)
	}
	decode := starjson.Module.Members["decode"].(*starlark.Builtin)
	f.Fuzz(func(t *testing.T, text string) {
		measured := nestedJSON(text)
		if measured > 1000 {
			return
		}
		v, err := starlark.Call(&starlark.Thread{}, decode, starlark.Tuple{starlark.String(text)}, nil)
		if err == nil && script.Measure(v, measured, 1<<40) != nil {
			t.Errorf("%q is nested deeper than %d", text, measured)
		}
	})
}
