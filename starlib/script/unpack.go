package script

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"

	"github.com/agext/levenshtein"
	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
)

// Unpack is [starlark.UnpackArgs] with errors that keep their cause, quote
// names and suggest the nearest parameter for an unknown keyword. The pairs are
// the same: a name, with ? where the parameter is optional and ?? where None
// means that it is absent, and a pointer. The errors leave the builtin's name
// to [Builtin].
func Unpack(args starlark.Tuple, kwargs []starlark.Tuple, pairs ...any) error {
	n := len(pairs) / 2
	if len(args) > n {
		if n == 0 {
			return fmt.Errorf("takes no arguments, got %d", len(args))
		}
		return fmt.Errorf("takes at most %d positional arguments, got %d", n, len(args))
	}
	var given uint64 // bit i: parameter i; no builtin has 64
	set := func(i int, v starlark.Value) error {
		name := pairs[2*i].(string)
		given |= 1 << i
		if strings.HasSuffix(name, "??") && v == starlark.None {
			return nil
		}
		if err := starlark.UnpackArg(v, pairs[2*i+1]); err != nil {
			return fmt.Errorf("%s: %w", strings.TrimRight(name, "?"), err)
		}
		return nil
	}
	for i, v := range args {
		if err := set(i, v); err != nil {
			return err
		}
	}
	for _, kw := range kwargs {
		name := string(kw[0].(starlark.String))
		i := 0
		for i < n && strings.TrimRight(pairs[2*i].(string), "?") != name {
			i++
		}
		switch {
		case i == n:
			return fmt.Errorf("unexpected keyword argument %q%s", name, suggest(name, pairs))
		case given&(1<<i) != 0:
			return fmt.Errorf("%s is given twice", name)
		}
		if err := set(i, kw[1]); err != nil {
			return err
		}
	}
	for i := range n {
		name := pairs[2*i].(string)
		if strings.HasSuffix(name, "?") {
			break
		}
		if given&(1<<i) == 0 {
			return fmt.Errorf("missing argument %q", name)
		}
	}
	return nil
}

func suggest(name string, pairs []any) string {
	var names []string
	for i := 0; i < len(pairs); i += 2 {
		names = append(names, strings.TrimRight(pairs[i].(string), "?"))
	}
	if near := Nearest(name, names); near != "" {
		return fmt.Sprintf(" (did you mean %q?)", near)
	}
	return " (accepted: " + strings.Join(names, ", ") + ")"
}

// Nearest returns the name that was most likely meant, or "": at most two
// mistakes, and at most one in three characters.
func Nearest(name string, names []string) string {
	name = strings.ToLower(name)
	best, bestDistance := "", min(2, (len(name)+2)/3, len(name)-1)+1
	for _, candidate := range names {
		if d := mistakes(name, strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// mistakes is the edit distance, where two characters that changed places count
// once. That happens once at most in a word.
func mistakes(name, meant string) int {
	d := levenshtein.Distance(name, meant, nil)
	for i := range len(name) - 1 {
		swapped := name[:i] + name[i+1:i+2] + name[i:i+1] + name[i+2:]
		d = min(d, 1+levenshtein.Distance(swapped, meant, nil))
	}
	return d
}

// Duration unpacks "1m30s", a number of seconds or a time.duration, zero or
// more.
type Duration time.Duration

// Unpack implements [starlark.Unpacker].
func (d *Duration) Unpack(v starlark.Value) error {
	dur, err := ParseDuration(v)
	if err == nil {
		*d = Duration(dur)
	}
	return err
}

// Timeout unpacks a duration of more than zero. The zero value is none.
type Timeout time.Duration

// Unpack implements [starlark.Unpacker].
func (t *Timeout) Unpack(v starlark.Value) error {
	dur, err := ParseDuration(v)
	if err == nil && dur == 0 {
		err = fmt.Errorf("%s: must be more than zero", Short(v))
	}
	if err == nil {
		*t = Timeout(dur)
	}
	return err
}

// ParseDuration returns the duration that a value stands for, see [Duration].
func ParseDuration(v starlark.Value) (time.Duration, error) {
	const want = `want a duration: "1m30s", a number of seconds or a time.duration`
	var d time.Duration
	switch v := v.(type) {
	case startime.Duration:
		d = time.Duration(v)
	case starlark.String:
		var err error
		if d, err = time.ParseDuration(string(v)); err != nil {
			return 0, fmt.Errorf("%s: %s", Short(v), want)
		}
	case starlark.Int, starlark.Float:
		f, _ := starlark.AsFloat(v)
		if math.IsNaN(f) || math.Abs(f) >= math.MaxInt64/float64(time.Second) {
			return 0, fmt.Errorf("%s seconds: out of range", Short(v))
		}
		d = time.Duration(f * float64(time.Second))
	default:
		return 0, fmt.Errorf("got %s, %s", v.Type(), want)
	}
	if d < 0 {
		return 0, fmt.Errorf("%s: must not be negative", Short(v))
	}
	return d, nil
}

// Size unpacks a number of bytes, more than zero: an int, or a string with a
// unit. K, M, G, T and their long forms KB and KiB are all powers of 1024, as
// for docker and ulimit.
type Size int64

// Unpack implements [starlark.Unpacker].
func (s *Size) Unpack(v starlark.Value) error {
	var n int64
	switch v := v.(type) {
	case starlark.Int:
		var ok bool
		if n, ok = v.Int64(); !ok {
			return fmt.Errorf("%s: out of range", Short(v))
		}
	case starlark.String:
		var err error
		if n, err = ParseSize(string(v)); err != nil {
			return err
		}
	case starlark.Float:
		return fmt.Errorf(`got float, want a whole number of bytes or a string such as "1.5G"`)
	default:
		return fmt.Errorf(`got %s, want a size: bytes, or a string such as "512M"`, v.Type())
	}
	if n <= 0 {
		return fmt.Errorf("%s: must be more than zero", Short(v))
	}
	*s = Size(n)
	return nil
}

// ParseSize returns the number of bytes that a size stands for, see [Size].
func ParseSize(s string) (int64, error) {
	bad := fmt.Errorf(`%s: want a size: bytes, or a number with a unit, such as "512M" or "1.5GiB"`, Short(starlark.String(s)))
	number := strings.TrimRight(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := strings.ToLower(s[len(number):])
	number = strings.TrimRight(number, " ")
	shift := uint(0)
	if unit != "" && unit != "b" {
		i := strings.IndexByte("kmgtp", unit[0])
		if i < 0 || unit[1:] != "" && unit[1:] != "b" && unit[1:] != "ib" {
			return 0, bad
		}
		shift = uint(i+1) * 10
	}
	// A big.Rat would take an exponent that fills the memory.
	if number == "" || len(number) > 32 || strings.Trim(number, "0123456789.") != "" {
		return 0, bad
	}
	r, ok := new(big.Rat).SetString(number)
	if !ok {
		return 0, bad
	}
	r.Mul(r, new(big.Rat).SetInt64(1<<shift))
	n := new(big.Int).Quo(r.Num(), r.Denom())
	if !n.IsInt64() {
		return 0, fmt.Errorf("%q: out of range", s)
	}
	return n.Int64(), nil
}

// Number unpacks an int or a float that is more than zero.
type Number float64

// Unpack implements [starlark.Unpacker].
func (n *Number) Unpack(v starlark.Value) error {
	f, ok := starlark.AsFloat(v)
	if !ok {
		return fmt.Errorf("got %s, want a number", v.Type())
	}
	if !(f > 0) || math.IsInf(f, 0) {
		return fmt.Errorf("%s: must be more than zero and finite", Short(v))
	}
	*n = Number(f)
	return nil
}

// Count unpacks an int that is more than zero.
type Count int64

// Unpack implements [starlark.Unpacker].
func (c *Count) Unpack(v starlark.Value) error {
	i, ok := v.(starlark.Int)
	if !ok {
		return fmt.Errorf("got %s, want int", v.Type())
	}
	n, ok := i.Int64()
	if !ok || n <= 0 {
		return fmt.Errorf("%s: must be more than zero", Short(v))
	}
	*c = Count(n)
	return nil
}

// Strings unpacks a list or tuple of strings.
type Strings []string

// Unpack implements [starlark.Unpacker].
func (s *Strings) Unpack(v starlark.Value) error {
	seq, ok := v.(starlark.Sequence)
	if !ok {
		return fmt.Errorf("got %s, want a list of strings", v.Type())
	}
	list := make([]string, 0, seq.Len())
	for elem := range starlark.Elements(seq) {
		str, ok := starlark.AsString(elem)
		if !ok {
			return fmt.Errorf("element %d: got %s, want string", len(list), elem.Type())
		}
		list = append(list, str)
	}
	*s = list
	return nil
}

// StringMap unpacks a dict from strings to strings. Numbers are written as
// strings, because FOO = 1 is what people write for FOO=1.
type StringMap map[string]string

// Unpack implements [starlark.Unpacker].
func (m *StringMap) Unpack(v starlark.Value) error {
	dict, ok := v.(starlark.IterableMapping)
	if !ok {
		return fmt.Errorf("got %s, want a dict of strings", v.Type())
	}
	out := map[string]string{}
	for _, item := range dict.Items() {
		key, ok := starlark.AsString(item[0])
		if !ok {
			return fmt.Errorf("key %s: got %s, want string", Short(item[0]), item[0].Type())
		}
		switch val := item[1].(type) {
		case starlark.String:
			out[key] = string(val)
		case starlark.Int, starlark.Float:
			out[key] = val.String()
		default:
			return fmt.Errorf("value of %q: got %s, want string", key, val.Type())
		}
	}
	*m = out
	return nil
}

// Data unpacks a string or bytes.
type Data []byte

// Unpack implements [starlark.Unpacker].
func (d *Data) Unpack(v starlark.Value) error {
	switch v := v.(type) {
	case starlark.String:
		*d = []byte(v)
	case starlark.Bytes:
		*d = []byte(v)
	default:
		return fmt.Errorf("got %s, want string or bytes", v.Type())
	}
	return nil
}

// A is the name of a value's type with its article: "an int".
func A(v starlark.Value) string {
	name := v.Type()
	if name != "" && strings.IndexByte("aeiou", name[0]) >= 0 {
		return "an " + name
	}
	return "a " + name
}

// Short writes a value for a message, cut to a few words. It does not write out
// containers: they can be of any size and depth.
func Short(v starlark.Value) string {
	switch v := v.(type) {
	case starlark.String:
		return strconv.Quote(cut(string(v)))
	case *starlarkstruct.Struct:
		return "a struct"
	case starlark.Sequence:
		return fmt.Sprintf("%s of %d", A(v), v.Len())
	}
	return cut(v.String())
}

// Title writes a value for people who know it: as [Short] does, but for a short
// tuple, list or dict with its elements.
func Title(v starlark.Value) string {
	const most = 4
	var parts []string
	open, end := "(", ")"
	switch v := v.(type) {
	case *starlark.Dict:
		if v.Len() <= most {
			for key, val := range v.Entries() {
				parts = append(parts, Short(key)+": "+Short(val))
			}
		}
		open, end = "{", "}"
	case starlark.Indexable: // string, bytes, list, tuple, range
		if _, isList := v.(*starlark.List); isList {
			open, end = "[", "]"
		} else if _, isTuple := v.(starlark.Tuple); !isTuple {
			break
		}
		if v.Len() <= most {
			for i := range v.Len() {
				parts = append(parts, Short(v.Index(i)))
			}
		}
	}
	if parts == nil {
		return Short(v)
	}
	return open + strings.Join(parts, ", ") + end
}

func cut(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "..."
}
