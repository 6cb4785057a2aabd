package sandbox

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// headers are those of an answer: a mapping that does not care about the case
// of its keys.
type headers struct{ header http.Header }

var _ starlark.IterableMapping = (*headers)(nil)

func (h *headers) String() string        { return fmt.Sprintf("<http.headers: %d>", len(h.header)) }
func (h *headers) Type() string          { return "http.headers" }
func (h *headers) Freeze()               {} // cannot be changed
func (h *headers) Truth() starlark.Bool  { return len(h.header) > 0 }
func (h *headers) Hash() (uint32, error) { return 0, fmt.Errorf("unhashable: http.headers") }

// Get implements [starlark.Mapping].
func (h *headers) Get(key starlark.Value) (starlark.Value, bool, error) {
	name, ok := starlark.AsString(key)
	if !ok {
		return nil, false, fmt.Errorf("the name of a header is a string, not %s", script.A(key))
	}
	values := h.header.Values(name)
	return starlark.String(strings.Join(values, ", ")), len(values) > 0, nil
}

func (h *headers) names() []string { return slices.Sorted(maps.Keys(h.header)) }

// Items implements [starlark.IterableMapping].
func (h *headers) Items() []starlark.Tuple {
	var items []starlark.Tuple
	for _, name := range h.names() {
		items = append(items, starlark.Tuple{starlark.String(name), starlark.String(strings.Join(h.header[name], ", "))})
	}
	return items
}

// Iterate implements [starlark.Iterable]: over the names, sorted.
func (h *headers) Iterate() starlark.Iterator {
	names := starlark.Tuple{}
	for _, name := range h.names() {
		names = append(names, starlark.String(name))
	}
	return names.Iterate()
}

type headersMethod func(t *script.Thread, th *starlark.Thread, h *headers, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error)

var headersMethods = bind("headers.", map[string]headersMethod{
	"get": headersGet,
	"all": headersAll,
})

// AttrNames implements [starlark.HasAttrs].
func (h *headers) AttrNames() []string { return slices.Sorted(maps.Keys(headersMethods)) }

// Attr implements [starlark.HasAttrs].
func (h *headers) Attr(name string) (starlark.Value, error) {
	if m, ok := headersMethods[name]; ok {
		return m.BindReceiver(h), nil
	}
	return nil, script.NoAttr("http.headers", name, h.AttrNames())
}

// headers.get(name, default) returns a header's value, or the default, None, where it was not sent.
func headersGet(_ *script.Thread, _ *starlark.Thread, h *headers, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var name string
	var def starlark.Value = starlark.None
	if err := script.Unpack(args, kwargs, "name", &name, "default?", &def); err != nil {
		return nil, err
	}
	if v, ok, err := h.Get(starlark.String(name)); ok || err != nil {
		return v, err
	}
	return def, nil
}

// headers.all(name) lists the values of a header in the order in which they came.
func headersAll(_ *script.Thread, _ *starlark.Thread, h *headers, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var name string
	if err := script.Unpack(args, kwargs, "name", &name); err != nil {
		return nil, err
	}
	return script.FromGo(append([]string{}, h.header.Values(name)...))
}
