package script

import (
	"encoding/json"
	"fmt"
	"slices"

	"go.starlark.net/starlark"
)

// Module is a named set of builtins.
type Module struct {
	Name    string
	Members starlark.StringDict
}

func (m *Module) String() string        { return "<module " + m.Name + ">" }
func (m *Module) Type() string          { return "module" }
func (m *Module) Freeze()               {} // the members are builtins
func (m *Module) Truth() starlark.Bool  { return true }
func (m *Module) Hash() (uint32, error) { return starlark.String(m.Name).Hash() }
func (m *Module) AttrNames() []string   { return m.Members.Keys() }

// Attr implements [starlark.HasAttrs].
func (m *Module) Attr(name string) (starlark.Value, error) {
	if v, ok := m.Members[name]; ok {
		return v, nil
	}
	return nil, NoAttr(m.Name, name, m.AttrNames())
}

// NoAttr is the error for an attribute that is not among the names.
func NoAttr(what, name string, names []string) error {
	if near := Nearest(name, names); near != "" {
		return fmt.Errorf("%s has no .%s (did you mean .%s?)", what, name, near)
	}
	return fmt.Errorf("%s has no .%s", what, name)
}

// Function is how a builtin is written: [Unpack] the arguments, make one call,
// convert what comes back. Errors get the builtin's name by themselves.
type Function func(t *Thread, th *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error)

// Builtin makes a builtin of a function. name is complete: "flow.sleep".
func Builtin(name string, fn Function) *starlark.Builtin {
	return starlark.NewBuiltin(name, func(th *starlark.Thread, _ *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
		v, err := fn(From(th), th, args, kwargs)
		return v, Named(name, err)
	})
}

// Named adds the name of a builtin to its error. An error that comes out of a
// function which the builtin called on its own thread is returned as it is: its
// backtrace already leads through the builtin.
func Named(builtin string, err error) error {
	switch err.(type) {
	case nil:
		return nil
	case *starlark.EvalError:
		return err
	}
	return fmt.Errorf("%s: %w", builtin, err)
}

// NewModule makes a module of functions by their names within it.
func NewModule(name string, fns map[string]Function) *Module {
	m := &Module{Name: name, Members: make(starlark.StringDict, len(fns))}
	for fn, impl := range fns {
		m.Members[fn] = Builtin(name+"."+fn, impl)
	}
	return m
}

// Record is an immutable value with named fields: what a command returned, the
// description of a file. It converts to a JSON object of its fields.
type Record struct {
	kind   string
	text   func() string
	fields starlark.StringDict
	more   starlark.StringDict
}

// NewRecord returns a record of the given type, which prints as text says. The
// fields must not be changed afterwards, and are frozen.
func NewRecord(kind string, fields starlark.StringDict, text func() string) *Record {
	fields.Freeze()
	return &Record{kind: kind, text: text, fields: fields}
}

// With adds attributes that are not part of the record's JSON: functions, and
// other forms of what a field has.
func (r *Record) With(more starlark.StringDict) *Record {
	more.Freeze()
	r.more = more
	return r
}

func (r *Record) String() string        { return r.text() }
func (r *Record) Type() string          { return r.kind }
func (r *Record) Freeze()               {}
func (r *Record) Truth() starlark.Bool  { return true }
func (r *Record) Hash() (uint32, error) { return 0, fmt.Errorf("unhashable: %s", r.kind) }

// AttrNames implements [starlark.HasAttrs].
func (r *Record) AttrNames() []string {
	names := append(r.fields.Keys(), r.more.Keys()...)
	slices.Sort(names)
	return names
}

// Attr implements [starlark.HasAttrs].
func (r *Record) Attr(name string) (starlark.Value, error) {
	if v, ok := r.fields[name]; ok {
		return v, nil
	}
	if v, ok := r.more[name]; ok {
		return v, nil
	}
	return nil, NoAttr(r.kind, name, r.AttrNames())
}

// MarshalJSON is what json.encode calls.
func (r *Record) MarshalJSON() ([]byte, error) {
	v, err := ToGo(r.kind, r, MaxNesting)
	if err != nil {
		return nil, err
	}
	return json.Marshal(v)
}
