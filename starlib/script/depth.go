package script

import (
	"fmt"
	"math"

	"go.starlark.net/starlark"
	"go.starlark.net/starlarkstruct"
)

// maxLive is how deep the values that a running script holds may nest. The
// interpreter recurses to print, freeze and hash values, and a stack overflow
// ends the process. Values may be deeper than that between two checks, which
// the stack bears.
const maxLive = 10_000

// How often a thread draws steps between two checks of how deep its values are
// nested: a check takes as long as several draws' steps, so it is made less
// often while nothing is deep.
const (
	minCheckInterval = 10
	maxCheckInterval = 100
	notDeep          = maxLive / 20
)

// checkDepth looks now and then whether the thread's values nest too deeply.
func (t *Thread) checkDepth() {
	if t.untilCheck--; t.untilCheck > 0 {
		return
	}
	deepest := t.deepest()
	if deepest > maxLive {
		t.Stop(Limit(fmt.Sprintf("the script's values are nested more than %d levels deep", maxLive)))
	}
	t.checkInterval = min(2*t.checkInterval, maxCheckInterval)
	if deepest > notDeep {
		t.checkInterval = minCheckInterval
	}
	t.untilCheck = t.checkInterval
}

// Measure reports why a value cannot be written out: it nests more than depth
// levels deep, or its text would be more than about limit bytes. A value that
// shares its parts can be tiny in memory and astronomical in writing, and the
// writing could not be cancelled. Cycles do not count.
func Measure(v starlark.Value, depth int, limit int64) error {
	limit = min(limit, 1<<60) // sums of two must not overflow
	type size struct {
		height int
		bytes  int64
	}
	type level struct {
		id    any
		parts []starlark.Value // that are still to be looked at
		size
	}
	known := map[any]size{} // what was measured; each container is walked once
	onPath := map[any]bool{}
	path := []level{{parts: []starlark.Value{v}}}
	for {
		top := &path[len(path)-1]
		if top.bytes > limit {
			return fmt.Errorf("more than %d bytes", limit)
		}
		if len(top.parts) == 0 {
			if len(path) == 1 {
				return nil
			}
			done := *top
			known[done.id] = done.size
			delete(onPath, done.id)
			path = path[:len(path)-1]
			top = &path[len(path)-1]
			top.height = max(top.height, done.height+1)
			top.bytes += done.bytes
			continue
		}
		part := top.parts[0]
		top.parts = top.parts[1:]
		top.bytes++
		if s, ok := part.(starlark.String); ok {
			top.bytes += int64(len(s))
		}
		id := identity(part)
		if id == nil || onPath[id] {
			continue
		}
		before, measured := known[id]
		if len(path)+before.height > depth {
			return fmt.Errorf("nested more than %d levels deep", depth)
		}
		if measured {
			top.height = max(top.height, before.height+1)
			top.bytes += before.bytes
			continue
		}
		onPath[id] = true
		path = append(path, level{id: id, parts: partsOf(part, math.MaxInt/4)})
	}
}

// deepest returns how deep the thread's values nest. It looks at a sample: the
// ends of containers, which is where chains go on, and a bounded number of them.
// It stops once it has found more than [maxLive].
func (t *Thread) deepest() int {
	n := nesting{limit: maxLive, sample: 16, budget: 2 * maxLive, onPath: map[any]bool{}, seen: map[any]int{}}
	modules := map[*starlark.Module]bool{}
	for i := range t.starlark.CallStackDepth() {
		frame := t.starlark.DebugFrame(i)
		fn, ok := frame.Callable().(*starlark.Function)
		if !ok {
			continue
		}
		for i := range frame.NumLocals() {
			if _, v := frame.Local(i); v != nil {
				n.visit(v)
			}
		}
		if !modules[fn.Module()] {
			modules[fn.Module()] = true
			for _, v := range fn.Globals() {
				n.visit(v)
			}
		}
	}
	return n.deepest
}

// nesting finds out how deep values nest. It does not recurse.
type nesting struct {
	limit   int // depth at which to stop
	deepest int // so far
	sample  int // elements to look at from each end of a container
	budget  int // containers to look at
	path    []nestingLevel
	onPath  map[any]bool
	// seen holds the depth at which a container was looked at. Without it one
	// that is reached in many ways would be looked at as often.
	seen map[any]int
}

type nestingLevel struct {
	id    any
	parts []starlark.Value // that are still to be looked at
}

func (n *nesting) visit(v starlark.Value) {
	n.path = append(n.path[:0], nestingLevel{parts: []starlark.Value{v}})
	clear(n.onPath)
	for len(n.path) > 0 && n.deepest <= n.limit && n.budget > 0 {
		top := &n.path[len(n.path)-1]
		if len(top.parts) == 0 {
			delete(n.onPath, top.id)
			n.path = n.path[:len(n.path)-1]
			continue
		}
		part := top.parts[0]
		top.parts = top.parts[1:]
		id := identity(part)
		if id == nil || n.onPath[id] {
			continue
		}
		if at, ok := n.seen[id]; ok && at >= len(n.path) {
			continue
		}
		n.seen[id] = len(n.path)
		n.deepest = max(n.deepest, len(n.path))
		n.budget--
		n.onPath[id] = true
		n.path = append(n.path, nestingLevel{id, partsOf(part, n.sample)})
	}
}

// identity returns a key for a container that is not empty, nil for other
// values.
func identity(v starlark.Value) any {
	switch v := v.(type) {
	case starlark.Tuple:
		if len(v) > 0 {
			return &v[0]
		}
	case *starlark.List, *starlark.Dict, *starlark.Set, *starlarkstruct.Struct, *starlark.Function:
		return v
	}
	return nil
}

// partsOf returns what a container holds: at most sample elements from each end
// of a sequence, and about as many of others.
func partsOf(v starlark.Value, sample int) []starlark.Value {
	var parts []starlark.Value
	switch v := v.(type) {
	case starlark.Indexable: // list, tuple
		size := v.Len()
		for i := 0; i < size; i++ {
			if i == sample && size-sample > i {
				i = size - sample
			}
			parts = append(parts, v.Index(i))
		}
	case *starlark.Dict:
		for key, val := range v.Entries() {
			if parts = append(parts, key, val); len(parts) >= 4*sample {
				break
			}
		}
	case *starlark.Set:
		for elem := range v.Elements() {
			if parts = append(parts, elem); len(parts) >= sample {
				break
			}
		}
	case *starlarkstruct.Struct:
		for _, name := range v.AttrNames() {
			if attr, err := v.Attr(name); err == nil {
				parts = append(parts, attr)
			}
		}
	case *starlark.Function:
		for i := range v.NumFreeVars() {
			if _, free := v.FreeVar(i); free != nil {
				parts = append(parts, free)
			}
		}
		for i := range v.NumParams() {
			if def := v.ParamDefault(i); def != nil {
				parts = append(parts, def)
			}
		}
	}
	return parts
}
