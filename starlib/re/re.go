// Package re is the Starlark module of regular expressions. The syntax is RE2's
// (https://github.com/google/re2/wiki/Syntax): the time that a search takes is
// linear in the text. The comments on its functions are the manual for authors
// of workflows.
package re

import (
	"container/list"
	"fmt"
	"regexp"
	"sync"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// Module is the re module:
//
//   - match(pattern, s): whether some part of s matches
//   - find(pattern, s): the first match, None if there is none
//   - find_all(pattern, s, n): all matches, or the first n
//   - groups(pattern, s): the first match and its groups as a list, None if
//     there is none; a group that took no part is None
//   - replace(pattern, repl, s): s with all matches replaced; repl is a string
//     in which $1 and ${name} stand for groups, or a function from the match to
//     its replacement
//   - split(pattern, s, n): the parts of s between matches, at most n of them
//   - escape(s): a pattern that matches s itself
var Module = script.NewModule("re", map[string]script.Function{
	"match":    match,
	"find":     find,
	"find_all": findAll,
	"groups":   groups,
	"replace":  replace,
	"split":    split,
	"escape":   escape,
})

// pattern unpacks a regular expression.
type pattern struct{ *regexp.Regexp }

// Unpack implements [starlark.Unpacker].
func (p *pattern) Unpack(v starlark.Value) error {
	s, ok := starlark.AsString(v)
	if !ok {
		return fmt.Errorf("got %s, want string", v.Type())
	}
	re, err := compiled.get(s)
	p.Regexp = re
	return err
}

func match(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var re pattern
	var s string
	if err := script.Unpack(args, kwargs, "pattern", &re, "s", &s); err != nil {
		return nil, err
	}
	return starlark.Bool(re.MatchString(s)), nil
}

func find(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var re pattern
	var s string
	if err := script.Unpack(args, kwargs, "pattern", &re, "s", &s); err != nil {
		return nil, err
	}
	if at := re.FindStringIndex(s); at != nil {
		return starlark.String(s[at[0]:at[1]]), nil
	}
	return starlark.None, nil
}

func findAll(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var re pattern
	var s string
	n := -1
	if err := script.Unpack(args, kwargs, "pattern", &re, "s", &s, "n?", &n); err != nil {
		return nil, err
	}
	return script.FromGo(append([]string{}, re.FindAllString(s, n)...))
}

func groups(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var re pattern
	var s string
	if err := script.Unpack(args, kwargs, "pattern", &re, "s", &s); err != nil {
		return nil, err
	}
	at := re.FindStringSubmatchIndex(s)
	if at == nil {
		return starlark.None, nil
	}
	out := make([]starlark.Value, len(at)/2)
	for i := range out {
		out[i] = starlark.None
		if from, to := at[2*i], at[2*i+1]; from >= 0 {
			out[i] = starlark.String(s[from:to])
		}
	}
	return starlark.NewList(out), nil
}

func replace(_ *script.Thread, th *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var re pattern
	var repl starlark.Value
	var s string
	if err := script.Unpack(args, kwargs, "pattern", &re, "repl", &repl, "s", &s); err != nil {
		return nil, err
	}
	if text, ok := starlark.AsString(repl); ok {
		return starlark.String(re.ReplaceAllString(s, text)), nil
	}
	fn, ok := repl.(starlark.Callable)
	if !ok {
		return nil, fmt.Errorf("repl: got %s, want string or function", repl.Type())
	}
	var failure error
	out := re.ReplaceAllStringFunc(s, func(m string) string {
		if failure != nil {
			return ""
		}
		v, err := starlark.Call(th, fn, starlark.Tuple{starlark.String(m)}, nil)
		text, ok := starlark.AsString(v)
		switch {
		case err != nil:
			failure = err
		case !ok:
			failure = fmt.Errorf("repl: %s returned %s, want string", fn.Name(), v.Type())
		}
		return text
	})
	return starlark.String(out), failure
}

func split(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var re pattern
	var s string
	n := -1
	if err := script.Unpack(args, kwargs, "pattern", &re, "s", &s, "n?", &n); err != nil {
		return nil, err
	}
	return script.FromGo(append([]string{}, re.Split(s, n)...))
}

func escape(_ *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var s string
	if err := script.Unpack(args, kwargs, "s", &s); err != nil {
		return nil, err
	}
	return starlark.String(regexp.QuoteMeta(s)), nil
}

// compiled are the expressions used last: a loop over many lines would compile
// its pattern for each.
var compiled = cache{max: 100}

type cache struct {
	max int

	mu    sync.Mutex
	byKey map[string]*list.Element
	used  list.List // of *regexp.Regexp, the last used in front
}

func (c *cache) get(s string) (*regexp.Regexp, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.byKey[s]; ok {
		c.used.MoveToFront(e)
		return e.Value.(*regexp.Regexp), nil
	}
	re, err := regexp.Compile(s)
	if err != nil {
		return nil, err
	}
	if c.byKey == nil {
		c.byKey = map[string]*list.Element{}
	}
	c.byKey[s] = c.used.PushFront(re)
	if c.used.Len() > c.max {
		last := c.used.Remove(c.used.Back()).(*regexp.Regexp)
		delete(c.byKey, last.String())
	}
	return re, nil
}
