package script

import (
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
)

// Deep reports whether a value nests more than depth levels deep or contains
// itself. It does not recurse, so no value can overflow its stack.
func Deep(v starlark.Value, depth int) bool {
	type level struct {
		elems []starlark.Value
	}
	stack := []level{{[]starlark.Value{v}}}
	// done holds what is known to be shallow enough at a depth: without it a
	// value that shares its parts would be walked through once for every way
	// that leads to them.
	done := map[any]int{}
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if len(top.elems) == 0 {
			stack = stack[:len(stack)-1]
			continue
		}
		elem := top.elems[0]
		top.elems = top.elems[1:]
		if id := identity(elem); id != nil {
			if at, seen := done[id]; seen && at >= len(stack) {
				continue
			}
			done[id] = len(stack)
		}
		if parts := partsOf(elem); len(parts) > 0 {
			if len(stack) > depth {
				return true
			}
			stack = append(stack, level{parts})
		}
	}
	return false
}

// identity returns a key for a container that others may share, else nil.
func identity(v starlark.Value) any {
	switch v := v.(type) {
	case *starlark.List, *starlark.Dict, *starlark.Set, *starlarkstruct.Struct:
		return v
	case starlark.Tuple:
		if len(v) > 0 {
			return &v[0]
		}
	}
	return nil
}

func partsOf(v starlark.Value) []starlark.Value {
	switch v := v.(type) {
	case starlark.Tuple:
		return v
	case *starlark.List:
		parts := make([]starlark.Value, 0, v.Len())
		for i := range v.Len() {
			parts = append(parts, v.Index(i))
		}
		return parts
	case *starlark.Dict:
		parts := make([]starlark.Value, 0, v.Len())
		for key, val := range v.Entries() {
			if _, ok := key.(starlark.Tuple); ok {
				parts = append(parts, key)
			}
			parts = append(parts, val)
		}
		return parts
	case *starlark.Set:
		var parts []starlark.Value
		for elem := range v.Elements() {
			parts = append(parts, elem)
		}
		return parts
	case *starlarkstruct.Struct:
		var parts []starlark.Value
		for _, name := range v.AttrNames() {
			if attr, err := v.Attr(name); err == nil {
				parts = append(parts, attr)
			}
		}
		return parts
	}
	return nil
}
