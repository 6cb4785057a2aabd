package starlib

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"go.starlark.net/starlark"
	"go.starlark.net/syntax"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// dialect is explained in the package's documentation.
var dialect = syntax.FileOptions{
	Set:             true,
	While:           true,
	TopLevelControl: true,
	GlobalReassign:  true,
}

// maxSource bounds the size of a source file, in bytes. Compiling is not
// cancellable and takes up to two seconds for as much.
const maxSource = 1 << 20

// loader loads the modules of one run. A load statement stands at the top level
// of a module, so all loading happens on the run's first thread, one within the
// other, and needs no lock.
type loader struct {
	fsys        fs.FS
	prefix      string // of paths in messages
	predeclared starlark.StringDict
	modules     map[string]*module
	chain       []string          // the modules being loaded, outermost first
	paths       map[string]string // from the name in messages to the path in fsys
	sources     map[string]string // by the name in messages
}

type module struct {
	loaded  bool // its top level has been executed
	globals starlark.StringDict
}

func newLoader(fsys fs.FS, prefix string, predeclared starlark.StringDict) *loader {
	return &loader{
		fsys: fsys, prefix: prefix, predeclared: predeclared,
		modules: map[string]*module{}, paths: map[string]string{}, sources: map[string]string{},
	}
}

// shown is the name of a module in messages.
func (l *loader) shown(file string) string { return filepath.Join(l.prefix, file) }

// add takes the source of a module, without the byte order mark that some
// editors put first.
func (l *loader) add(file string, src []byte) {
	l.sources[l.shown(file)] = strings.TrimPrefix(string(src), "\uFEFF")
}

// loadError is a module that cannot be had.
type loadError struct{ err error }

func (e *loadError) Error() string { return e.err.Error() }
func (e *loadError) Unwrap() error { return e.err }

// cycleError is a chain of modules that leads back to its beginning.
type cycleError struct{ chain []string }

func (e *cycleError) Error() string {
	return "the modules load each other: " + strings.Join(e.chain, " -> ")
}

// lacksName reports that a load statement names what its module does not define.
func lacksName(err error) (lacks bool) {
	walk(err, func(err error) bool {
		// The interpreter has no type for this.
		eval, ok := err.(*starlark.EvalError)
		lacks = ok && strings.HasPrefix(eval.Msg, "load: name ")
		return !lacks
	})
	return lacks
}

// load implements the load statement.
func (l *loader) load(th *starlark.Thread, name string) (starlark.StringDict, error) {
	from := l.paths[th.CallFrame(0).Pos.Filename()]
	file, err := modulePath(from, name)
	if err != nil {
		return nil, &loadError{err}
	}
	if m := l.modules[file]; m != nil {
		if !m.loaded {
			chain := l.chain[slices.Index(l.chain, file):]
			return nil, &loadError{&cycleError{append(slices.Clone(chain), file)}}
		}
		return m.globals, nil
	}
	src, err := script.ReadRegular(l.fsys, file, maxSource)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("there is no %s: %w", l.shown(file), fs.ErrNotExist)
		}
		return nil, &loadError{err}
	}
	l.add(file, src)
	return l.exec(th, file)
}

// modulePath returns the path of a module that is loaded by another.
func modulePath(from, name string) (string, error) {
	switch {
	case !strings.HasSuffix(name, ".star"):
		return "", errors.New("the name of a module ends in .star")
	case path.IsAbs(name) || strings.ContainsAny(name, "\\\x00"):
		return "", errors.New("the name of a module is relative to the file that loads it")
	}
	file := path.Join(path.Dir(from), name)
	if !fs.ValidPath(file) {
		return "", errors.New("it is outside the workflow's directory")
	}
	return file, nil
}

// exec runs the top level of a module whose source is known, on the thread that
// loads it: its backtrace then leads through all the modules.
func (l *loader) exec(th *starlark.Thread, file string) (starlark.StringDict, error) {
	m := &module{}
	l.modules[file] = m
	shown := l.shown(file)
	l.paths[shown] = file
	l.chain = append(l.chain, file)
	_, prog, err := starlark.SourceProgramOptions(&dialect, shown, l.sources[shown], l.predeclared.Has)
	if err != nil {
		return nil, err
	}
	if m.globals, err = prog.Init(th, l.predeclared); err != nil {
		return nil, err
	}
	l.chain = l.chain[:len(l.chain)-1]
	m.loaded = true
	return m.globals, script.Freeze(slices.Collect(maps.Values(m.globals))...)
}
