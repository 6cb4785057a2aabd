package script

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"sort"
	"strconv"
	"time"

	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
)

// MaxNesting bounds the nesting of values that are converted, where nothing else
// is said. JSON parsers commonly stop at 1000 to 10000 levels.
const MaxNesting = 1000

// ToGo converts a value to what package encoding/json makes of JSON: nil, bool,
// int64 ([json.Number] where that is too small), float64, string, []any and
// map[string]any. A time.duration becomes a string such as "1.5s", a struct an
// object. An error names the path to what cannot be converted, beginning with
// name. Values nested more than depth levels deep, or in a cycle, are errors.
func ToGo(name string, v starlark.Value, depth int) (any, error) {
	c := converter{max: depth, onPath: map[any]bool{}}
	out, err := c.convert(v)
	var bad *pathError
	if errors.As(err, &bad) {
		slices.Reverse(bad.path)
		for i, part := range bad.path {
			if i == maxPath {
				name += "..."
				break
			}
			name += part
		}
		return nil, fmt.Errorf("%s: %s", name, bad.reason)
	}
	return out, err
}

// maxPath is how much of a path is shown.
const maxPath = 8

type pathError struct {
	path   []string // innermost first
	reason string
}

func (e *pathError) Error() string { return e.reason }

type converter struct {
	depth, max int
	onPath     map[any]bool // the containers around
}

func (c *converter) convert(v starlark.Value) (any, error) {
	if c.depth++; c.depth > c.max {
		return nil, &pathError{reason: fmt.Sprintf("nested more than %d levels deep", c.max)}
	}
	if id := identity(v); id != nil {
		if c.onPath[id] {
			return nil, &pathError{reason: A(v) + " that contains itself"}
		}
		c.onPath[id] = true
		defer delete(c.onPath, id)
	}
	defer func() { c.depth-- }()
	switch v := v.(type) {
	case starlark.NoneType:
		return nil, nil
	case starlark.Bool:
		return bool(v), nil
	case starlark.Int:
		if n, ok := v.Int64(); ok {
			return n, nil
		}
		return json.Number(v.String()), nil
	case starlark.Float:
		if math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) {
			return nil, &pathError{reason: fmt.Sprintf("%v is not a JSON number", v)}
		}
		return float64(v), nil
	case starlark.String:
		return string(v), nil
	case startime.Duration:
		return time.Duration(v).String(), nil
	case startime.Time:
		return time.Time(v).Format(time.RFC3339Nano), nil
	case *starlark.List:
		return c.list(v)
	case starlark.Tuple:
		return c.list(v)
	case starlark.IterableMapping: // dict, and what looks like one
		out := map[string]any{}
		for _, item := range v.Items() {
			key, ok := starlark.AsString(item[0])
			if !ok {
				return nil, &pathError{reason: fmt.Sprintf("the key %s is %s, and JSON has only string keys", Short(item[0]), A(item[0]))}
			}
			val, err := c.convert(item[1])
			if err != nil {
				return nil, at(err, "["+strconv.Quote(key)+"]")
			}
			out[key] = val
		}
		return out, nil
	case *starlarkstruct.Struct:
		return c.attrs(v, v.AttrNames())
	case *Record:
		return c.attrs(v, v.fields.Keys())
	}
	return nil, &pathError{reason: A(v) + " is not JSON"}
}

func (c *converter) list(seq starlark.Indexable) (any, error) {
	out := make([]any, seq.Len())
	for i := range out {
		val, err := c.convert(seq.Index(i))
		if err != nil {
			return nil, at(err, "["+strconv.Itoa(i)+"]")
		}
		out[i] = val
	}
	return out, nil
}

func (c *converter) attrs(v starlark.HasAttrs, names []string) (any, error) {
	out := make(map[string]any, len(names))
	for _, name := range names {
		attr, err := v.Attr(name)
		if err != nil {
			return nil, at(err, "."+name)
		}
		val, err := c.convert(attr)
		if err != nil {
			return nil, at(err, "."+name)
		}
		out[name] = val
	}
	return out, nil
}

func at(err error, part string) error {
	if bad, ok := err.(*pathError); ok {
		bad.path = append(bad.path, part)
	}
	return err
}

// FromGo converts a Go value to a Starlark one: what [ToGo] returns, all
// integer and float types, []string, map[string]string, [time.Duration],
// []byte (to bytes) and Starlark values as they are.
func FromGo(v any) (starlark.Value, error) { return fromGo(v, 0) }

func fromGo(v any, depth int) (starlark.Value, error) {
	if depth > MaxNesting {
		return nil, fmt.Errorf("nested more than %d levels deep", MaxNesting)
	}
	switch v := v.(type) {
	case nil:
		return starlark.None, nil
	case starlark.Value:
		return v, nil
	case bool:
		return starlark.Bool(v), nil
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64, uintptr:
		n, ok := new(big.Int).SetString(fmt.Sprint(v), 10)
		if !ok {
			return nil, fmt.Errorf("%v is not an integer", v)
		}
		return starlark.MakeBigInt(n), nil
	case *big.Int:
		return starlark.MakeBigInt(v), nil
	case float32:
		return starlark.Float(v), nil
	case float64:
		return starlark.Float(v), nil
	case json.Number:
		if n, ok := new(big.Int).SetString(string(v), 10); ok {
			return starlark.MakeBigInt(n), nil
		}
		f, err := v.Float64()
		return starlark.Float(f), err
	case string:
		return starlark.String(v), nil
	case []byte:
		return starlark.Bytes(v), nil
	case time.Duration:
		return startime.Duration(v), nil
	case time.Time:
		return startime.Time(v), nil
	case []string:
		list := make([]starlark.Value, len(v))
		for i, s := range v {
			list[i] = starlark.String(s)
		}
		return starlark.NewList(list), nil
	case []any:
		list := make([]starlark.Value, len(v))
		for i, elem := range v {
			var err error
			if list[i], err = fromGo(elem, depth+1); err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return starlark.NewList(list), nil
	case map[string]string:
		m := make(map[string]any, len(v))
		for key, val := range v {
			m[key] = val
		}
		return fromGo(m, depth)
	case map[string]any:
		dict := starlark.NewDict(len(v))
		keys := make([]string, 0, len(v))
		for key := range v {
			keys = append(keys, key)
		}
		sort.Strings(keys) // the order of a dict is visible
		for _, key := range keys {
			val, err := fromGo(v[key], depth+1)
			if err != nil {
				return nil, fmt.Errorf("[%q]: %w", key, err)
			}
			if err := dict.SetKey(starlark.String(key), val); err != nil {
				return nil, err
			}
		}
		return dict, nil
	}
	return nil, fmt.Errorf("a Go %T has no Starlark form", v)
}

// JSON writes a value as indented JSON with sorted keys, see [ToGo].
func JSON(name string, v starlark.Value) ([]byte, error) {
	val, err := ToGo(name, v, MaxNesting)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err = enc.Encode(val)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}
