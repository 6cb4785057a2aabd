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
	for _, name := range []string{"str", "repr", "print", "fail"} {
		names[name] = guarded(starlark.Universe[name].(*starlark.Builtin))
	}
	maps.Copy(names, rt.options.Builtins)
	return names
}

// maxText bounds the text that a builtin makes of a value, in bytes.
const maxText = 64 << 20

// jsonModule is that of the library, guarded as [guarded] says.
var jsonModule = func() *script.Module {
	members := maps.Clone(starjson.Module.Members)
	for _, name := range []string{"encode", "encode_indent"} {
		members[name] = guarded(members[name].(*starlark.Builtin))
	}
	for _, name := range []string{"decode", "indent"} {
		members[name] = shallow(members[name].(*starlark.Builtin))
	}
	return &script.Module{Name: "json", Members: members}
}()

// guarded makes a builtin that writes values refuse those that it could not
// finish: the recursion over a deep one would overflow the stack, which ends the
// process, and the text of one that shares its parts can be endless.
func guarded(b *starlark.Builtin) *starlark.Builtin {
	return starlark.NewBuiltin(b.Name(), func(th *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		for _, v := range args {
			if err := script.Measure(v, 10*script.MaxNesting, maxText); err != nil {
				return nil, fmt.Errorf("%s: %w", b.Name(), err)
			}
		}
		return b.CallInternal(th, args, kwargs)
	})
}

// shallow is [guarded] for builtins that read JSON.
func shallow(b *starlark.Builtin) *starlark.Builtin {
	return starlark.NewBuiltin(b.Name(), func(th *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		for _, v := range args {
			if s, ok := starlark.AsString(v); ok && nestedJSON(s) > script.MaxNesting {
				return nil, fmt.Errorf("%s: nested more than %d levels deep", b.Name(), script.MaxNesting)
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
