// Package assert is the Starlark module that checks what a workflow expects. The
// comments on its functions are the manual for authors of workflows.
package assert

import (
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"

	"github.com/google/go-cmp/cmp"
	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// Module is the assert module. Each of its functions takes an optional msg,
// which precedes the error, and fails with kind "assertion failed":
//
//   - eq(got, want), ne(a, b): equal, and not. eq shows what differs
//   - true(x), false(x): the truth of any value
//   - lt(a, b), le(a, b), gt(a, b), ge(a, b): a < b and so on
//   - contains(x, item): item in x, for strings, lists, dicts, sets
//   - matches(s, pattern): some part of s matches a regular expression (RE2)
//   - len(x, n): x has n elements
//   - fails(fn, pattern): fn() fails and its message matches; it returns the
//     message
//   - golden(path, value): value is what the file holds, see [golden]
var Module = script.NewModule("assert", map[string]script.Function{
	"eq":       eq,
	"ne":       ne,
	"true":     truth(true),
	"false":    truth(false),
	"lt":       compare(syntax.LT),
	"le":       compare(syntax.LE),
	"gt":       compare(syntax.GT),
	"ge":       compare(syntax.GE),
	"contains": contains,
	"matches":  matches,
	"len":      length,
	"fails":    fails,
	"golden":   golden,
})

// fail returns a failed assertion. detail may be empty.
func fail(msg, detail, format string, args ...any) error {
	text := fmt.Sprintf(format, args...)
	if msg != "" {
		text = msg + ": " + text
	}
	return &script.Failure{Kind: script.KindAssertion, Msg: text, Detail: detail}
}

func eq(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var got, want starlark.Value
	var msg string
	if err := script.Unpack(args, kwargs, "got", &got, "want", &want, "msg??", &msg); err != nil {
		return nil, err
	}
	equal, err := starlark.EqualDepth(got, want, script.MaxNesting)
	if err != nil || equal {
		return starlark.None, err
	}
	if scalar(got) && scalar(want) {
		return nil, fail(msg, "", "got %s, want %s", literal(got), literal(want))
	}
	return nil, fail(msg, diff(got, want), "got is not what is wanted (- want, + got)")
}

func ne(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var a, b starlark.Value
	var msg string
	if err := script.Unpack(args, kwargs, "a", &a, "b", &b, "msg??", &msg); err != nil {
		return nil, err
	}
	equal, err := starlark.EqualDepth(a, b, script.MaxNesting)
	if err == nil && equal {
		err = fail(msg, "", "both are %s", literal(a))
	}
	return starlark.None, err
}

func truth(want bool) script.Function {
	return func(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		var x starlark.Value
		var msg string
		if err := script.Unpack(args, kwargs, "x", &x, "msg??", &msg); err != nil {
			return nil, err
		}
		if bool(x.Truth()) != want {
			return nil, fail(msg, "", "%s is %t", literal(x), !want)
		}
		return starlark.None, nil
	}
}

func compare(op syntax.Token) script.Function {
	return func(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		var a, b starlark.Value
		var msg string
		if err := script.Unpack(args, kwargs, "a", &a, "b", &b, "msg??", &msg); err != nil {
			return nil, err
		}
		ok, err := starlark.Compare(op, a, b)
		if err == nil && !ok {
			err = fail(msg, "", "%s %s %s is false", literal(a), op, literal(b))
		}
		return starlark.None, err
	}
}

func contains(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var x, item starlark.Value
	var msg string
	if err := script.Unpack(args, kwargs, "x", &x, "item", &item, "msg??", &msg); err != nil {
		return nil, err
	}
	in, err := starlark.Binary(syntax.IN, item, x)
	if err == nil && !bool(in.Truth()) {
		detail := ""
		if s, ok := starlark.AsString(x); ok && strings.Contains(s, "\n") {
			detail = clip(s)
		}
		err = fail(msg, detail, "%s is not in %s", literal(item), literal(x))
	}
	return starlark.None, err
}

func matches(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var s, pattern, msg string
	if err := script.Unpack(args, kwargs, "s", &s, "pattern", &pattern, "msg??", &msg); err != nil {
		return nil, err
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	if !re.MatchString(s) {
		detail := ""
		if strings.Contains(s, "\n") {
			detail = clip(s)
		}
		return nil, fail(msg, detail, "%s does not match %q", literal(starlark.String(s)), pattern)
	}
	return starlark.None, nil
}

func length(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var x starlark.Value
	var want int
	var msg string
	if err := script.Unpack(args, kwargs, "x", &x, "n", &want, "msg??", &msg); err != nil {
		return nil, err
	}
	n := starlark.Len(x)
	switch {
	case n < 0:
		return nil, fmt.Errorf("x: %s has no length", script.A(x))
	case n != want:
		return nil, fail(msg, "", "%s has length %d, not %d", literal(x), n, want)
	}
	return starlark.None, nil
}

// fails(fn, pattern) does not take the end of the run itself for the failure.
func fails(t *script.Thread, th *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var fn starlark.Callable
	var pattern, msg string
	if err := script.Unpack(args, kwargs, "fn", &fn, "pattern??", &pattern, "msg??", &msg); err != nil {
		return nil, err
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("pattern: %w", err)
	}
	v, err := starlark.Call(th, fn, nil, nil)
	switch {
	case err == nil:
		return nil, fail(msg, "", "%s did not fail, it returned %s", fn.Name(), literal(v))
	case t.Canceled():
		return nil, err
	case !re.MatchString(err.Error()):
		return nil, fail(msg, "", "%s failed with %q, which does not match %q", fn.Name(), err.Error(), pattern)
	}
	return starlark.String(err.Error()), nil
}

// golden(path, value) compares a string, or the JSON of any other value, with
// the content of a file of the workflow's directory. A run that updates its
// golden files writes the file instead.
func golden(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var path, msg string
	var value starlark.Value
	if err := script.Unpack(args, kwargs, "path", &path, "value", &value, "msg??", &msg); err != nil {
		return nil, err
	}
	got, ok := starlark.AsString(value)
	if !ok {
		data, err := script.JSON("value", value)
		if err != nil {
			return nil, err
		}
		got = string(data) + "\n"
	}
	if t.UpdateGolden {
		return starlark.None, t.Files.WriteGolden(path, []byte(got))
	}
	want, err := t.Files.Read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &script.Failure{
			Kind: script.KindAssertion, Err: err,
			Msg:  fmt.Sprintf("there is no golden file %q", path),
			Hint: "capyrun test --update writes the golden files",
		}
	}
	if err != nil {
		return nil, err
	}
	if string(want) != got {
		return nil, fail(msg, clip(cmp.Diff(string(want), got)), "the value is not what %q holds (- golden, + value)", path)
	}
	return starlark.None, nil
}

func scalar(v starlark.Value) bool {
	switch v := v.(type) {
	case starlark.String:
		return len(v) <= 60 && !strings.Contains(string(v), "\n")
	case starlark.NoneType, starlark.Bool, starlark.Int, starlark.Float:
		return true
	}
	return false
}

// literal writes a value for a message, containers only in short.
func literal(v starlark.Value) string {
	if scalar(v) {
		return v.String()
	}
	return script.Short(v)
}

// maxDetail bounds what a failed assertion shows, in bytes.
const maxDetail = 8 << 10

func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxDetail {
		return strings.TrimRight(s, "\n")
	}
	return strings.ToValidUTF8(s[:maxDetail], "") + "\n..."
}

// diff shows what differs between two values that are not equal.
func diff(got, want starlark.Value) string {
	if got.Type() != want.Type() {
		return fmt.Sprintf("- %s\n+ %s", script.A(want), script.A(got))
	}
	g, w := plain(got), plain(want)
	return clip(strings.ReplaceAll(cmp.Diff(w, g), "\u00a0", " "))
}
