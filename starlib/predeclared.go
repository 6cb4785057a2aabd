package starlib

import (
	"fmt"
	"maps"

	starjson "go.starlark.net/lib/json"
	starmath "go.starlark.net/lib/math"
	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"

	"github.com/capybara-hq/capyrun/starlib/assert"
	"github.com/capybara-hq/capyrun/starlib/flow"
	"github.com/capybara-hq/capyrun/starlib/host"
	"github.com/capybara-hq/capyrun/starlib/re"
	"github.com/capybara-hq/capyrun/starlib/sandbox"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// predeclared are the names that every module of a run sees.
func (rt *Runtime) predeclared() starlark.StringDict {
	names := starlark.StringDict{
		"sandbox": sandbox.Module,
		"flow":    flow.Module,
		"assert":  assert.Module,
		"host":    host.New(rt.options.Args),
		"re":      re.Module,
		"json":    jsonModule,
		"math":    &script.Module{Name: "math", Members: starmath.Module.Members},
		"time":    &script.Module{Name: "time", Members: startime.Module.Members},
		"struct":  starlark.NewBuiltin("struct", starlarkstruct.Make),
	}
	maps.Copy(names, rt.options.Builtins)
	return names
}

// jsonModule is that of the library, guarded against values so deeply nested
// that its recursion would overflow the stack, which ends the process.
var jsonModule = func() *script.Module {
	members := maps.Clone(starjson.Module.Members)
	for _, name := range []string{"encode", "encode_indent", "decode", "indent"} {
		members[name] = shallow(members[name].(*starlark.Builtin))
	}
	return &script.Module{Name: "json", Members: members}
}()

func shallow(b *starlark.Builtin) *starlark.Builtin {
	return starlark.NewBuiltin(b.Name(), func(th *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		for _, v := range args {
			deep := false
			if s, ok := starlark.AsString(v); ok {
				deep = nestedJSON(s) > script.MaxNesting
			} else {
				deep = script.Deep(v, script.MaxNesting)
			}
			if deep {
				return nil, fmt.Errorf("%s: nested more than %d levels deep, or in a cycle", b.Name(), script.MaxNesting)
			}
		}
		return b.CallInternal(th, args, kwargs)
	})
}

// nestedJSON returns how deep a JSON text nests, at most.
func nestedJSON(s string) int {
	depth, deepest, quoted := 0, 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
			deepest = max(deepest, depth)
		case c == ']' || c == '}':
			depth--
		}
	}
	return deepest
}
