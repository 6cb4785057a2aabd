package starlib

import (
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// Params are the arguments of main, by name. Values are Go values of the kinds
// that [Result.Value] has, other numbers, []string, map[string]string,
// [time.Duration], or Starlark values. They must fit the type of the
// parameter's default, if it has one other than None.
type Params map[string]any

// Text is a parameter given as text, on a command line. It is converted to the
// type of the parameter's default: int, float, bool ("true", "false"), string,
// duration ("1m30s"), list, tuple or dict (as JSON). Without a default, or with
// None, it is a string.
type Text string

// ParseParams makes [Text] parameters of arguments of the form name=value.
func ParseParams(args []string) (Params, error) {
	params := Params{}
	for _, arg := range args {
		name, value, ok := strings.Cut(arg, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("parameter %q: want name=value", arg)
		}
		if _, twice := params[name]; twice {
			return nil, fmt.Errorf("parameter %s is given twice", name)
		}
		params[name] = Text(value)
	}
	return params, nil
}

// paramsError is everything that is wrong with the parameters of a run.
type paramsError struct {
	problems []string
	accepted string // main's signature
}

func (e *paramsError) Error() string {
	msg := strings.Join(e.problems, "\n")
	if e.accepted != "" {
		msg += "\n" + e.accepted
	}
	return msg
}

// bindParams makes keyword arguments of the parameters.
func bindParams(fn *starlark.Function, params Params) ([]starlark.Tuple, error) {
	var (
		kwargs   []starlark.Tuple
		problems []string
		names    []string
		known    = map[string]starlark.Value{} // the defaults; nil: required
	)
	for i := range namedParams(fn) {
		name, _ := fn.Param(i)
		names = append(names, name)
		known[name] = fn.ParamDefault(i)
		if _, given := params[name]; !given && known[name] == nil {
			problems = append(problems, fmt.Sprintf("missing parameter %q", name))
		}
	}
	given := make([]string, 0, len(params))
	for name := range params {
		given = append(given, name)
	}
	sort.Strings(given)
	for _, name := range given {
		if !slices.Contains(names, name) && !fn.HasKwargs() {
			problem := fmt.Sprintf("unknown parameter %q", name)
			if near := script.Nearest(name, names); near != "" {
				problem += fmt.Sprintf(" (did you mean %q?)", near)
			}
			problems = append(problems, problem)
			continue
		}
		v, err := paramValue(params[name], known[name])
		if err != nil {
			problems = append(problems, fmt.Sprintf("parameter %q: %v", name, err))
			continue
		}
		kwargs = append(kwargs, starlark.Tuple{starlark.String(name), v})
	}
	if len(problems) > 0 {
		return nil, &paramsError{problems, accepted(fn)}
	}
	return kwargs, nil
}

// namedParams is the number of parameters before *args and **kwargs.
func namedParams(fn *starlark.Function) int {
	n := fn.NumParams()
	if fn.HasVarargs() {
		n--
	}
	if fn.HasKwargs() {
		n--
	}
	return n
}

// accepted says what main takes.
func accepted(fn *starlark.Function) string {
	var list []string
	for i := range namedParams(fn) {
		name, _ := fn.Param(i)
		switch def := fn.ParamDefault(i); def {
		case nil:
			list = append(list, name+" (required)")
		case starlark.None:
			list = append(list, name)
		default:
			list = append(list, fmt.Sprintf("%s (%s, default %s)", name, def.Type(), script.Short(def)))
		}
	}
	if len(list) == 0 {
		return "main takes no parameters"
	}
	return "main takes: " + strings.Join(list, ", ")
}

// paramValue converts the value of a parameter with the given default, which is
// nil where there is none.
func paramValue(value any, def starlark.Value) (starlark.Value, error) {
	if text, ok := value.(Text); ok {
		return parseText(string(text), def)
	}
	v, err := script.FromGo(value)
	if err != nil {
		return nil, err
	}
	if def == nil || def == starlark.None || v.Type() == def.Type() || v == starlark.None {
		return v, nil
	}
	// JSON has one kind of number and one of list.
	switch def.(type) {
	case starlark.Float:
		if f, ok := starlark.AsFloat(v); ok {
			return starlark.Float(f), nil
		}
	case starlark.Int:
		if f, ok := v.(starlark.Float); ok {
			if i, err := starlark.NumberToInt(f); err == nil && starlark.Float(i.Float()) == f {
				return i, nil
			}
		}
	case starlark.Tuple:
		if list, ok := v.(*starlark.List); ok {
			return listToTuple(list), nil
		}
	case startime.Duration:
		if d, err := script.ParseDuration(v); err == nil {
			return startime.Duration(d), nil
		}
	}
	return nil, fmt.Errorf("got %s %s, want %s", v.Type(), script.Short(v), def.Type())
}

func listToTuple(list *starlark.List) starlark.Tuple {
	return slices.Collect(list.Elements())
}

// parseText converts a parameter given as text.
func parseText(text string, def starlark.Value) (starlark.Value, error) {
	switch def.(type) {
	case starlark.Bool:
		switch strings.ToLower(text) {
		case "true", "1", "yes", "on":
			return starlark.True, nil
		case "false", "0", "no", "off":
			return starlark.False, nil
		}
		return nil, fmt.Errorf("%q is not a bool: want true or false", text)
	case starlark.Int:
		n, err := strconv.ParseInt(text, 0, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not an int", text)
		}
		return starlark.MakeInt64(n), nil
	case starlark.Float:
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a float", text)
		}
		return starlark.Float(f), nil
	case startime.Duration:
		d, err := script.ParseDuration(starlark.String(text))
		return startime.Duration(d), err
	case *starlark.List, *starlark.Dict, starlark.Tuple:
		return parseJSON(text, def)
	case nil, starlark.NoneType, starlark.String:
		return starlark.String(text), nil
	}
	return nil, fmt.Errorf("%s cannot be given as text", script.A(def))
}

func parseJSON(text string, def starlark.Value) (starlark.Value, error) {
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	var out any
	if err := dec.Decode(&out); err != nil || dec.More() {
		return nil, fmt.Errorf("%q is not %s: want JSON", text, script.A(def))
	}
	v, err := script.FromGo(out)
	if err != nil {
		return nil, err
	}
	if list, ok := v.(*starlark.List); ok {
		if _, ok := def.(starlark.Tuple); ok {
			return listToTuple(list), nil
		}
	}
	if v.Type() != def.Type() {
		return nil, fmt.Errorf("%q is %s, want %s", text, script.A(v), script.A(def))
	}
	return v, nil
}
