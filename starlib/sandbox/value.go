package sandbox

import (
	"context"
	"fmt"
	"slices"

	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// Sandbox is a sandbox as scripts see it. Attributes: .name, .image, .egress,
// .status ("running", "suspended", ...), and the methods below. It may be used
// by several branches of flow.parallel at once.
type Sandbox struct {
	run *script.Run
	sb  provider.Sandbox
}

// Unwrap returns the provider's sandbox, for builtins of embedders.
func (s *Sandbox) Unwrap() provider.Sandbox { return s.sb }

func (s *Sandbox) String() string        { return "<sandbox " + s.sb.Name() + ">" }
func (s *Sandbox) Type() string          { return "sandbox" }
func (s *Sandbox) Freeze()               {} // the state is not Starlark's
func (s *Sandbox) Truth() starlark.Bool  { return true }
func (s *Sandbox) Hash() (uint32, error) { return starlark.String(s.sb.Name()).Hash() }

// method is a builtin that belongs to a sandbox.
type method func(t *script.Thread, th *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error)

var methods = bind("sandbox.", map[string]method{
	"exec":       exec,
	"spawn":      spawn,
	"process":    process,
	"processes":  processes,
	"kill":       kill,
	"kill_all":   killAll,
	"write":      write,
	"read":       read,
	"read_bytes": readBytes,
	"stat":       stat,
	"exists":     exists,
	"ls":         ls,
	"glob":       glob,
	"mkdir":      mkdir,
	"remove":     removeFile,
	"rename":     rename,
	"upload":     upload,
	"download":   download,
	"suspend":    suspend,
	"resume":     resume,
	"destroy":    destroySelf,
	"stats":      stats,
	"http":       httpRequest,
	"wait_port":  waitPort,
	"forward":    forward,
})

// bind makes builtins whose receiver is a value of type S.
func bind[S starlark.Value, F ~func(*script.Thread, *starlark.Thread, S, starlark.Tuple, []starlark.Tuple) (starlark.Value, error)](prefix string, fns map[string]F) map[string]*starlark.Builtin {
	builtins := make(map[string]*starlark.Builtin, len(fns))
	for name, fn := range fns {
		name := prefix + name
		builtins[name[len(prefix):]] = starlark.NewBuiltin(name, func(th *starlark.Thread, b *starlark.Builtin, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
			v, err := fn(script.From(th), th, b.Receiver().(S), args, kwargs)
			return v, script.Named(name, err)
		})
	}
	return builtins
}

var attrNames = func() []string {
	names := []string{"name", "image", "egress", "status"}
	for name := range methods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}()

// AttrNames implements [starlark.HasAttrs].
func (s *Sandbox) AttrNames() []string { return attrNames }

// Attr implements [starlark.HasAttrs].
func (s *Sandbox) Attr(name string) (starlark.Value, error) {
	if m, ok := methods[name]; ok {
		return m.BindReceiver(s), nil
	}
	switch name {
	case "name":
		return starlark.String(s.sb.Name()), nil
	case "image", "egress", "status":
		info, err := s.sb.Info(s.run.Context())
		if err != nil {
			return nil, script.Named("sandbox."+name, err)
		}
		switch name {
		case "image":
			return starlark.String(info.Image), nil
		case "egress":
			return starlark.String(info.Egress), nil
		}
		return starlark.String(info.State), nil
	}
	return nil, script.NoAttr("sandbox", name, s.AttrNames())
}

// span runs one operation on the sandbox as a span of the run's events.
func (s *Sandbox) span(t *script.Thread, kind event.Kind, title string, op func(ctx context.Context) error) error {
	ctx, span := event.Begin(t.Ctx, event.Event{Kind: kind, Name: title, Sandbox: s.sb.Name()})
	err := op(ctx)
	span.End(err, nil)
	return err
}

// noArgs runs an operation that takes no arguments and returns None.
func noArgs(t *script.Thread, s *Sandbox, title string, args starlark.Tuple, kwargs []starlark.Tuple, op func(context.Context) error) (starlark.Value, error) {
	if err := script.Unpack(args, kwargs); err != nil {
		return nil, err
	}
	return starlark.None, s.span(t, event.KindSandbox, title, op)
}

// sb.suspend() stops every process within five seconds and keeps the files of
// /workspace. The next operation on the sandbox resumes it.
func suspend(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	return noArgs(t, s, "suspend", args, kwargs, s.sb.Suspend)
}

// sb.resume() starts a suspended sandbox again; it does nothing to a running
// one.
func resume(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	return noArgs(t, s, "resume", args, kwargs, s.sb.Resume)
}

// sb.destroy() removes the sandbox and everything that belongs to it.
func destroySelf(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	if err := script.Unpack(args, kwargs); err != nil {
		return nil, err
	}
	return starlark.None, remove(t, s.sb.Name(), s.sb.Destroy)
}

// sb.stats() returns what the sandbox uses: .cpu_time (a duration),
// .cpu_percent (of one processor), .memory, .memory_peak and .memory_limit in
// bytes, .pids, .pids_peak and .pids_limit, .oom_kills. A limit of 0 is none.
func stats(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var st provider.Stats
	if _, err := noArgs(t, s, "stats", args, kwargs, func(ctx context.Context) (err error) {
		st, err = s.sb.Stats(ctx)
		return err
	}); err != nil {
		return nil, err
	}
	return script.NewRecord("sandbox.stats", starlark.StringDict{
		"cpu_time":     startime.Duration(st.CPUTime),
		"cpu_percent":  starlark.Float(st.CPUPercent),
		"memory":       starlark.MakeInt64(st.Memory),
		"memory_peak":  starlark.MakeInt64(st.MemoryPeak),
		"memory_limit": starlark.MakeInt64(st.MemoryLimit),
		"pids":         starlark.MakeInt64(st.PIDs),
		"pids_peak":    starlark.MakeInt64(st.PIDsPeak),
		"pids_limit":   starlark.MakeInt64(st.PIDsLimit),
		"oom_kills":    starlark.MakeInt64(st.OOMKills),
	}, func() string {
		return fmt.Sprintf("<stats: cpu %v, memory %d bytes, %d processes>", st.CPUTime, st.Memory, st.PIDs)
	}), nil
}
