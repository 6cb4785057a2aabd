package starlib

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// RunFile runs a workflow from a file. The error is an [*Error]; the result is
// nil where the workflow failed, and is there beside the error where only the
// cleanup did.
//
// Cancelling ctx stops the scripts and the commands in sandboxes; the cleanup
// still takes place.
func (rt *Runtime) RunFile(ctx context.Context, file string, params Params) (*Result, error) {
	return rt.run(ctx, file, nil, params)
}

// RunSource runs a workflow from memory. The name stands for its file in
// messages, and its directory is the workflow's.
func (rt *Runtime) RunSource(ctx context.Context, name string, src []byte, params Params) (*Result, error) {
	if src == nil {
		src = []byte{}
	}
	return rt.run(ctx, name, src, params)
}

func (rt *Runtime) run(ctx context.Context, file string, src []byte, params Params) (res *Result, err error) {
	start := time.Now()
	if rt.options.Events != nil {
		ctx = event.NewContext(ctx, rt.options.Events)
	}
	ctx, span := event.Begin(ctx, event.Event{Kind: event.KindRun, Name: file})
	defer func() { span.End(err, nil) }()

	x, err := rt.open(file, src)
	if err != nil {
		return nil, err
	}
	defer x.files.Close()
	value, failure := x.script(ctx, params)
	kept, cleanup := x.cleanup(ctx, failure != nil)
	if failure != nil {
		failure.Cleanup = cleanup
		return nil, failure
	}
	res = &Result{Value: value, Kept: kept, Steps: x.run.StepsUsed(), Duration: time.Since(start)}
	if cleanup != nil {
		e := x.explain(cleanup)
		e.Kind = KindCleanup
		return res, e
	}
	return res, nil
}

// execution is one run of a workflow.
type execution struct {
	rt     *Runtime
	files  *script.Files
	run    *script.Run
	loader *loader
	main   string // the main file's path in files.FS()
}

// open finds the workflow's file and directory.
func (rt *Runtime) open(file string, src []byte) (*execution, error) {
	dir, base := filepath.Split(file)
	if dir == "" {
		dir = "."
	}
	if base == "" {
		base = "."
	}
	shown := dir // what precedes module paths in messages
	if rt.options.FS != nil {
		clean := path.Clean(filepath.ToSlash(file))
		if !fs.ValidPath(clean) {
			return nil, &Error{Kind: KindLoad, Msg: fmt.Sprintf("%q is not a path in the file system of the workflows", file)}
		}
		base, shown = clean, "."
	}
	files, err := script.OpenFiles(rt.options.FS, dir, rt.options.AllowRead, rt.options.Out)
	if err != nil {
		return nil, &Error{Kind: KindLoad, Msg: err.Error(), Err: err}
	}
	x := &execution{rt: rt, files: files, main: base}
	x.loader = newLoader(files.FS(), shown, rt.predeclared())
	if src == nil {
		if src, err = rt.readMain(dir, base); err != nil {
			files.Close()
			e := &Error{Kind: KindLoad, Msg: err.Error(), Err: err}
			var at *fs.PathError // with the path below dir alone
			if errors.Is(err, fs.ErrNotExist) {
				e.Msg = file + ": no such file"
			} else if errors.As(err, &at) {
				e.Msg = file + ": " + at.Err.Error()
			}
			return nil, e
		}
	}
	x.loader.add(base, src)
	c := rt.config(files)
	c.Load = x.loader.load
	x.run = script.NewRun(c)
	return x, nil
}

// readMain reads the file that the caller named. Unlike what the script names it
// may be a link to a file that is elsewhere.
func (rt *Runtime) readMain(dir, base string) ([]byte, error) {
	if rt.options.FS != nil {
		return script.ReadRegular(rt.options.FS, base, maxSource)
	}
	return script.ReadRegular(os.DirFS(dir), base, maxSource)
}

// script executes the file and main, and returns main's value.
func (x *execution) script(ctx context.Context, params Params) (any, *Error) {
	limits := x.rt.options.Limits
	ctx, stop := x.run.Begin(ctx)
	defer stop(nil)
	if limits.Time > 0 {
		timer := time.AfterFunc(limits.Time, func() {
			stop(script.Limit(fmt.Sprintf("the script ran longer than %v", limits.Time)))
		})
		defer timer.Stop()
	}
	defer watchHeap(limits.Heap, stop)()

	v, err := x.run.Do(ctx, nil, "main", func(th *starlark.Thread) (starlark.Value, error) {
		globals, err := x.loader.exec(th, x.main)
		if err != nil {
			return nil, err
		}
		return callMain(th, globals, params)
	})
	if err == nil {
		var out any
		if out, err = x.convert(v); err == nil {
			return out, nil
		}
	}
	if ctx.Err() != nil {
		err = &stopped{cause: context.Cause(ctx), err: err}
	}
	return nil, x.explain(err)
}

// stopped is the error of a run that was stopped from outside or by a limit. Why
// is its cause, where is in err.
type stopped struct{ cause, err error }

func (s *stopped) Error() string   { return s.cause.Error() }
func (s *stopped) Unwrap() []error { return []error{s.cause, s.err} }

func callMain(th *starlark.Thread, globals starlark.StringDict, params Params) (starlark.Value, error) {
	main, ok := globals["main"]
	if !ok {
		if len(params) > 0 {
			return nil, &paramsError{problems: []string{"the workflow has no function main, so it takes no parameters"}}
		}
		return starlark.None, nil
	}
	fn, ok := main.(*starlark.Function)
	if !ok {
		return nil, fmt.Errorf("main is %s, not a function", script.A(main))
	}
	kwargs, err := bindParams(fn, params)
	if err != nil {
		return nil, err
	}
	return starlark.Call(th, fn, nil, kwargs)
}

// convert makes the result of main's value.
func (x *execution) convert(v starlark.Value) (any, error) {
	limits := x.rt.options.Limits
	if err := script.Measure(v, math.MaxInt/4, limits.Output); err != nil {
		return nil, script.Limit(fmt.Sprintf("the result is %v", err))
	}
	out, err := script.ToGo("result", v, limits.Depth)
	if err != nil {
		return nil, fmt.Errorf("main must return something that can be written as JSON: %w", err)
	}
	data, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("result: %w", err)
	}
	if int64(len(data)) > limits.Output {
		return nil, script.Limit(fmt.Sprintf("the result is %d bytes as JSON, more than %d", len(data), limits.Output))
	}
	return out, nil
}

// cleanup makes the deferred calls and destroys the sandboxes, on contexts that
// outlive a cancelled run. It returns the names of the sandboxes that are left
// on purpose.
func (x *execution) cleanup(ctx context.Context, failed bool) (kept []string, err error) {
	defer x.run.Release()
	if !x.run.HasDeferred() && len(x.run.Owned()) == 0 {
		return nil, nil
	}
	ctx, span := event.Begin(context.WithoutCancel(ctx), event.Event{Kind: event.KindCleanup, Name: "cleanup"})
	defer func() { span.End(err, nil) }()
	errs := x.deferred(ctx)
	x.run.Release() // deferred calls may have used it
	keep := x.rt.options.Keep == KeepAlways || x.rt.options.Keep == KeepOnFailure && failed
	var doomed []provider.Sandbox
	for _, o := range x.run.Owned() {
		if o.Kept || keep {
			kept = append(kept, o.Sandbox.Name())
		} else {
			doomed = append(doomed, o.Sandbox)
		}
	}
	errs = append(errs, x.destroy(ctx, doomed)...)
	if len(kept) > 0 {
		slices.Sort(kept)
		event.Emit(ctx, event.Event{Type: event.Log, Level: event.Info, Text: "kept: " + strings.Join(kept, ", "), Attrs: map[string]any{"kept": kept}})
	}
	return kept, errors.Join(errs...)
}

// deferred makes the deferred calls, the last one first.
func (x *execution) deferred(ctx context.Context) (errs []error) {
	if !x.run.HasDeferred() {
		return nil
	}
	grace := x.rt.options.CleanupGrace
	event.Emit(ctx, event.Event{Type: event.Progress, Text: fmt.Sprintf("running deferred calls (up to %v)", grace)})
	ctx, cancel := context.WithTimeoutCause(ctx, grace, fmt.Errorf("deferred calls took longer than %v", grace))
	defer cancel()
	ctx, stop := x.run.Begin(ctx)
	defer stop(nil)
	defer watchHeap(x.rt.options.Limits.Heap, stop)()
	for {
		d, ok := x.run.PopDeferred()
		if !ok {
			return errs
		}
		_, err := x.run.Do(ctx, nil, "deferred "+d.Func.Name(), func(th *starlark.Thread) (starlark.Value, error) {
			return starlark.Call(th, d.Func, d.Args, d.Kwargs)
		})
		if err != nil && ctx.Err() != nil {
			err = &stopped{cause: context.Cause(ctx), err: err}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("deferred %s: %w", d.Func.Name(), err))
		}
	}
}

// destroy removes sandboxes, all at once.
func (x *execution) destroy(ctx context.Context, sandboxes []provider.Sandbox) []error {
	switch n := len(sandboxes); n {
	case 0:
		return nil
	case 1:
		event.Emit(ctx, event.Event{Type: event.Progress, Text: "cleaning up 1 sandbox"})
	default:
		event.Emit(ctx, event.Event{Type: event.Progress, Text: fmt.Sprintf("cleaning up %d sandboxes", n)})
	}
	grace := x.rt.options.CleanupGrace
	ctx, cancel := context.WithTimeoutCause(ctx, grace, fmt.Errorf("it took longer than %v", grace))
	defer cancel()
	errs := make([]error, len(sandboxes))
	var wg sync.WaitGroup
	for i, sb := range sandboxes {
		wg.Go(func() {
			ctx, span := event.Begin(ctx, event.Event{Kind: event.KindSandbox, Name: "destroy", Sandbox: sb.Name()})
			err := sb.Destroy(ctx)
			if errors.Is(err, provider.ErrGone) {
				err = nil
			}
			span.End(err, nil)
			errs[i] = err
		})
	}
	wg.Wait()
	return errs
}
