package sandbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// sb.spawn(cmd, timeout, env, cwd, stdin, tag, max_output) starts a command in
// the background and returns a process at once. The arguments are those of
// sb.exec, but there is no timeout unless one is given, without stdin the input
// stays open for .write, and max_output keeps the newest output. The process
// ends with the sandbox.
func spawn(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var cmd command
	if err := cmd.unpack(args, kwargs); err != nil {
		return nil, err
	}
	var proc provider.Process
	err := s.span(t, event.KindSpawn, cmd.title(), func(ctx context.Context) (err error) {
		proc, err = s.sb.Start(ctx, cmd.Command)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Process{run: t.Run, proc: proc, title: cmd.title()}, nil
}

// sb.process(id) finds a background process by its id or tag, whoever started
// it. It fails with kind "gone" where there is none.
func process(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var id string
	if err := script.Unpack(args, kwargs, "id", &id); err != nil {
		return nil, err
	}
	proc, err := s.sb.Process(t.Ctx, id)
	if err != nil {
		return nil, err
	}
	return &Process{run: t.Run, proc: proc, title: id}, nil
}

// sb.processes() lists the commands that the sandbox runs and the background
// ones that have ended: .id, .pid, .command, .tag, .background, .started,
// .running, .exit_code (None while running or if killed), .signal.
func processes(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	if err := script.Unpack(args, kwargs); err != nil {
		return nil, err
	}
	infos, err := s.sb.Processes(t.Ctx)
	if err != nil {
		return nil, err
	}
	out := make([]starlark.Value, len(infos))
	for i, info := range infos {
		state := "running"
		var code starlark.Value = starlark.None
		if !info.Running {
			state = "ended"
			if info.Signal == "" && info.ExitCode >= 0 {
				code = starlark.MakeInt(info.ExitCode)
			}
		}
		out[i] = script.NewRecord("process.info", starlark.StringDict{
			"id":         starlark.String(info.ID),
			"pid":        starlark.MakeInt(info.PID),
			"command":    starlark.String(info.Command),
			"tag":        starlark.String(info.Tag),
			"background": starlark.Bool(info.Background),
			"started":    startime.Time(info.Started),
			"running":    starlark.Bool(info.Running),
			"exit_code":  code,
			"signal":     starlark.String(info.Signal),
		}, func() string {
			return fmt.Sprintf("<process %s, pid %d, %s: %s>", info.ID, info.PID, state, oneLine(info.Command))
		})
	}
	return starlark.NewList(out), nil
}

// sb.kill(tag, ...) ends every command with one of the tags, whoever started
// it, with all its descendants, and returns how many commands that were.
func kill(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	if len(kwargs) > 0 {
		return nil, fmt.Errorf("takes tags, not keyword arguments")
	}
	var tags script.Strings
	if err := tags.Unpack(args); err != nil {
		return nil, err
	}
	if len(tags) == 0 {
		return nil, fmt.Errorf("takes at least one tag; sb.kill_all() ends everything")
	}
	for _, tag := range tags {
		if err := provider.CheckTag(tag); err != nil {
			return nil, err
		}
	}
	var n int
	err := s.span(t, event.KindSandbox, "kill "+fmt.Sprint([]string(tags)), func(ctx context.Context) (err error) {
		n, err = s.sb.Kill(ctx, tags...)
		return err
	})
	return starlark.MakeInt(n), err
}

// sb.kill_all() ends every process in the sandbox and returns how many commands
// that were.
func killAll(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var n int
	_, err := noArgs(t, s, "kill all", args, kwargs, func(ctx context.Context) (err error) {
		n, err = s.sb.KillAll(ctx)
		return err
	})
	return starlark.MakeInt(n), err
}

// Process is a background command as scripts see it: .id, .pid, .running,
// .stdout and .stderr (what is kept of the output so far), and the methods
// below.
type Process struct {
	run   *script.Run
	proc  provider.Process
	title string
}

func (p *Process) String() string {
	return fmt.Sprintf("<process %s, pid %d: %s>", p.proc.ID(), p.proc.PID(), p.title)
}
func (p *Process) Type() string          { return "process" }
func (p *Process) Freeze()               {} // the state is not Starlark's
func (p *Process) Truth() starlark.Bool  { return true }
func (p *Process) Hash() (uint32, error) { return starlark.String(p.proc.ID()).Hash() }

type processMethod func(t *script.Thread, th *starlark.Thread, p *Process, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error)

var processMethods = bind("process.", map[string]processMethod{
	"wait":        processWait,
	"kill":        processKill,
	"write":       processWrite,
	"close_stdin": processCloseStdin,
})

var processAttrNames = func() []string {
	names := []string{"id", "pid", "running", "stdout", "stderr"}
	for name := range processMethods {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}()

// AttrNames implements [starlark.HasAttrs].
func (p *Process) AttrNames() []string { return processAttrNames }

// Attr implements [starlark.HasAttrs].
func (p *Process) Attr(name string) (starlark.Value, error) {
	if m, ok := processMethods[name]; ok {
		return m.BindReceiver(p), nil
	}
	switch name {
	case "id":
		return starlark.String(p.proc.ID()), nil
	case "pid":
		return starlark.MakeInt(p.proc.PID()), nil
	case "running":
		info, err := p.proc.Info(p.run.Context())
		return starlark.Bool(info.Running), script.Named("process.running", err)
	case "stdout", "stderr":
		out, err := p.proc.Output(p.run.Context())
		if err != nil {
			return nil, script.Named("process."+name, err)
		}
		if name == "stdout" {
			return starlark.String(out.Stdout), nil
		}
		return starlark.String(out.Stderr), nil
	}
	return nil, script.NoAttr("process", name, p.AttrNames())
}

// process.wait(timeout, on_line) returns the result when the process has ended,
// as that of sb.exec, whether it succeeded or not. on_line is a function that
// gets every line of output, of both streams: what is kept of the output so far,
// then the rest as it comes. When the timeout passes, or on_line fails, the
// process goes on; the former fails with kind "timed out".
func processWait(t *script.Thread, th *starlark.Thread, p *Process, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var timeout script.Timeout
	var onLine starlark.Callable
	if err := script.Unpack(args, kwargs, "timeout??", &timeout, "on_line??", &onLine); err != nil {
		return nil, err
	}
	ctx, span := event.Begin(t.Ctx, event.Event{Kind: event.KindWait, Name: "wait for " + p.title})
	ctx, cancel := within(ctx, time.Duration(timeout))
	defer cancel()
	var err error
	if onLine != nil {
		_, err = withLines(ctx, lineCalls(th, onLine), p.proc.Follow)
	}
	var res *provider.Result
	if err == nil {
		res, err = p.proc.Wait(ctx) // with the output that is kept
	}
	span.End(err, resultAttrs(res))
	if err != nil {
		return nil, err
	}
	return newResult(res), nil
}

// process.kill(signal) sends a signal, "TERM" by default, to the process and its
// group. "KILL" ends all its descendants and returns when they are dead.
func processKill(t *script.Thread, _ *starlark.Thread, p *Process, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	signal := "TERM"
	if err := script.Unpack(args, kwargs, "signal??", &signal); err != nil {
		return nil, err
	}
	return starlark.None, p.proc.Signal(t.Ctx, signal)
}

// process.write(data) writes a string or bytes to the process's input.
func processWrite(t *script.Thread, _ *starlark.Thread, p *Process, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var data script.Data
	if err := script.Unpack(args, kwargs, "data", &data); err != nil {
		return nil, err
	}
	return starlark.None, p.proc.Write(t.Ctx, data)
}

// process.close_stdin() ends the process's input.
func processCloseStdin(t *script.Thread, _ *starlark.Thread, p *Process, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	if err := script.Unpack(args, kwargs); err != nil {
		return nil, err
	}
	return starlark.None, p.proc.CloseStdin(t.Ctx)
}
