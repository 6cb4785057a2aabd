package assert

import (
	"fmt"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// maxPlain bounds how many values go into a diff: comparing two large
// structures costs more than the square of it at worst, and cannot be
// cancelled.
const maxPlain = 10_000

// plain converts any value to Go values that go-cmp can compare. What is beyond
// the bounds on number and depth becomes a short text.
func plain(v starlark.Value) any {
	left := maxPlain
	return plainValue(v, 100, &left)
}

func plainValue(v starlark.Value, depth int, left *int) any {
	if *left--; *left < 0 || depth == 0 {
		return fmt.Sprintf("<%s not compared>", script.Short(v))
	}
	switch v := v.(type) {
	case starlark.NoneType:
		return nil
	case starlark.Bool:
		return bool(v)
	case starlark.Int:
		if n, ok := v.Int64(); ok {
			return n
		}
		return v.String()
	case starlark.Float:
		return float64(v)
	case starlark.String:
		return string(v)
	case starlark.Bytes:
		return []byte(v)
	case starlark.IterableMapping:
		byString, byAny := map[string]any{}, map[any]any{}
		for _, item := range v.Items() {
			val := plainValue(item[1], depth-1, left)
			if key, ok := starlark.AsString(item[0]); ok {
				byString[key] = val
			}
			byAny[plainKey(item[0])] = val
		}
		if len(byString) == len(byAny) {
			return byString // easier to read in a diff
		}
		return byAny
	case *starlark.Set:
		m := map[any]struct{}{}
		for elem := range v.Elements() {
			m[plainKey(elem)] = struct{}{}
		}
		return m
	case starlark.Iterable:
		list := []any{}
		for elem := range starlark.Elements(v) {
			list = append(list, plainValue(elem, depth-1, left))
		}
		return list
	case starlark.HasAttrs:
		m := map[string]any{}
		for _, name := range v.AttrNames() {
			if attr, err := v.Attr(name); err == nil && attr != nil {
				m[name] = plainValue(attr, depth-1, left)
			}
		}
		return m
	}
	return script.Short(v)
}

// plainKey is a dict's key: they are hashable, but not every Go form is.
func plainKey(v starlark.Value) any {
	switch v := v.(type) {
	case starlark.String:
		return string(v)
	case starlark.Int:
		if n, ok := v.Int64(); ok {
			return n
		}
	case starlark.Bool:
		return bool(v)
	}
	return v.String()
}
