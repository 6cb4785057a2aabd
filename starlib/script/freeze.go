package script

import (
	"fmt"
	"math"

	"go.starlark.net/starlark"
)

// Freeze makes values immutable. It refuses those on which the interpreter's own
// freezing would not end: it follows functions to what they capture without
// remembering where it has been, so that a nested function that refers to itself
// overflows the stack, which ends the process.
func Freeze(values ...starlark.Value) error {
	var c freezeChecker
	if err := c.check(values); err != nil {
		return err
	}
	for _, v := range values {
		v.Freeze()
	}
	return nil
}

// maxUnflagged bounds how many functions and tuples freezing may come across.
const maxUnflagged = 1 << 22

type freezeChecker struct {
	path []freezeLevel
}

type freezeLevel struct {
	v       starlark.Value
	id      any
	parts   []starlark.Value // that are still to be looked at
	barrier int              // the last level of the path, up to this one, that remembers being frozen
	cost    int64
}

func (c *freezeChecker) check(values []starlark.Value) error {
	known := map[any]int64{} // the cost of what was looked at
	onPath := map[any]int{}  // the level of what is on the path
	c.path = []freezeLevel{{parts: values}}
	for {
		level := len(c.path) - 1
		top := &c.path[level]
		if top.cost > maxUnflagged {
			return fmt.Errorf("values that share their parts this often cannot be frozen")
		}
		if len(top.parts) == 0 {
			if level == 0 {
				return nil
			}
			cost := top.cost
			if top.barrier == level {
				cost = 0 // freezing comes here once
			}
			known[top.id] = cost
			delete(onPath, top.id)
			c.path = c.path[:level]
			c.path[level-1].cost += cost + 1
			continue
		}
		part := top.parts[0]
		top.parts = top.parts[1:]
		id := identity(part)
		if id == nil {
			continue
		}
		if at, ok := onPath[id]; ok {
			if at > top.barrier {
				return c.cycle(at)
			}
			continue
		}
		if cost, ok := known[id]; ok {
			top.cost += cost + 1
			continue
		}
		barrier := top.barrier
		switch part.(type) {
		case starlark.Tuple, *starlark.Function:
		default:
			barrier = level + 1
		}
		onPath[id] = level + 1
		c.path = append(c.path, freezeLevel{v: part, id: id, parts: partsOf(part, math.MaxInt/4), barrier: barrier})
	}
}

// cycle names a function that refers to itself.
func (c *freezeChecker) cycle(from int) error {
	for _, level := range c.path[from:] {
		if fn, ok := level.v.(*starlark.Function); ok {
			return fmt.Errorf("the nested function %s, defined at %v, refers to itself: functions like that cannot be shared, define it at the top level", fn.Name(), fn.Position())
		}
	}
	return fmt.Errorf("a value contains itself and cannot be frozen") // there is no cycle without a function
}
