package docker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

// startTimeout bounds the wait for a container that somebody else is starting.
const startTimeout = 30 * time.Second

// Sandbox is a [provider.Sandbox]. Commands, processes, files and connections
// are those of the embedded session with the agent; what is here is asked of
// the engine.
//
// It stands for one container, by id: after that was destroyed every operation
// fails with [provider.ErrGone], also when another sandbox has its name.
type Sandbox struct {
	*agent.Session
	p        *Provider
	name     string
	id       string
	instance string

	mu      sync.Mutex
	started string // of the container when the session was made, as the engine writes it
	stream  *stream
}

var _ provider.Sandbox = (*Sandbox)(nil)

func (p *Provider) newSandbox(name, id, instance string) *Sandbox {
	s := &Sandbox{p: p, name: name, id: id, instance: instance}
	s.Session = agent.NewSession(agent.SessionConfig{
		Sandbox:   name,
		Dial:      s.dial,
		Files:     s.dialFiles,
		Recover:   s.restart,
		Reachable: p.reachable,
		Quiet:     s.unpause,
		Explain:   s.explain,
	})
	p.mu.Lock()
	p.sessions[s] = struct{}{}
	p.mu.Unlock()
	return s
}

func (s *Sandbox) close() {
	s.forget()
	s.Session.Close()
}

// forget leaves the session out of what the provider closes.
func (s *Sandbox) forget() {
	s.p.mu.Lock()
	defer s.p.mu.Unlock()
	delete(s.p.sessions, s)
}

// Name implements [provider.Sandbox].
func (s *Sandbox) Name() string { return s.name }

// Info implements [provider.Sandbox].
func (s *Sandbox) Info(ctx context.Context) (provider.Info, error) {
	c, err := s.inspect(ctx, "inspect")
	if err != nil {
		return provider.Info{}, err
	}
	return infoOf(c), nil
}

// Suspend implements [provider.Sandbox].
func (s *Sandbox) Suspend(ctx context.Context) error {
	if _, err := s.inspect(ctx, "suspend"); err != nil {
		return err
	}
	mctx, cancel := s.p.mutating(ctx)
	defer cancel()
	broken := s.Breaking()
	seconds := stopSeconds
	if err := s.p.api.ContainerStop(mctx, s.id, container.StopOptions{Timeout: &seconds}); err != nil {
		return s.fail(ctx, "suspend", err)
	}
	s.await(ctx, broken)
	return nil
}

// await waits until the session has broken with the container, so that the next
// operation makes it anew. It does not wait long: a stopped container's streams
// are at their end, and only the word of it may be late.
func (s *Sandbox) await(ctx context.Context, broken func(context.Context)) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	broken(ctx)
}

// Resume implements [provider.Sandbox].
func (s *Sandbox) Resume(ctx context.Context) error {
	c, err := s.inspect(ctx, "resume")
	if err != nil {
		return err
	}
	if c.State.Running && !c.State.Paused {
		return nil
	}
	// Reaching the agent is what resumes.
	if _, err := s.ready(ctx); err != nil {
		return s.fail(ctx, "resume", err)
	}
	return s.Ping(ctx)
}

// Destroy implements [provider.Sandbox].
func (s *Sandbox) Destroy(ctx context.Context) error {
	broken := s.Breaking()
	err := s.p.destroy(ctx, s.name, s.instance)
	if err != nil && !errors.Is(err, provider.ErrGone) {
		return err
	}
	s.await(ctx, broken)
	// The session is not closed: it has broken with the container, and an
	// operation that tries to make it anew learns that the sandbox is gone.
	s.forget()
	return nil
}

// startAttached starts the new container with the session attached to its
// first process: that saves the 70 ms of an exec.
func (s *Sandbox) startAttached(ctx context.Context) error {
	st, err := hijack(ctx, func() (types.HijackedResponse, error) {
		return s.p.api.ContainerAttach(ctx, s.id, container.AttachOptions{Stream: true, Stdin: true, Stdout: true, Stderr: true})
	})
	if err != nil {
		return s.fail(ctx, "attach", s.notAttached(ctx, err))
	}
	mctx, cancel := s.p.mutating(ctx)
	defer cancel()
	if err := s.p.api.ContainerStart(mctx, s.id, container.StartOptions{}); err != nil {
		st.Close()
		if agentMissing(err) {
			return errAgentMissing
		}
		return s.fail(ctx, "start", err)
	}
	if err := s.Adopt(ctx, s.remember(st, "")); err != nil {
		st.Close()
		if canceled(ctx) == nil {
			err = &provider.Error{Op: "start", Sandbox: s.name, Kind: provider.ErrSessionLost, Err: s.explain(ctx, err)}
		}
		return s.fail(ctx, "start", err)
	}
	return nil
}

// errAgentMissing says that the agent's volume or image is not on the engine
// any more.
var errAgentMissing = errors.New("the agent is not on the engine")

// agentMissing recognises a start that failed for want of the agent's binary:
// an empty volume has taken the place of a pruned one.
func agentMissing(err error) bool {
	return strings.Contains(err.Error(), agent.Path) && strings.Contains(err.Error(), "no such file or directory")
}

// remember keeps which run of the container a stream belongs to, for explain.
func (s *Sandbox) remember(st *stream, started string) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stream, s.started = st, started
	return st
}

// dial opens a session with an agent that somebody else has started.
func (s *Sandbox) dial(ctx context.Context) (io.ReadWriteCloser, error) {
	st, started, err := s.connect(ctx, agent.ConnectArgs())
	if err != nil {
		return nil, err
	}
	return s.remember(st, started), nil
}

// dialFiles starts a server for changes under /skills.
func (s *Sandbox) dialFiles(ctx context.Context) (io.ReadWriteCloser, error) {
	st, _, err := s.connect(ctx, agent.FilesArgs(skillsMount))
	if err != nil {
		return nil, err
	}
	return st, nil
}

// connect runs a part of the agent in the sandbox, which it resumes if need be,
// and returns since when the sandbox runs. Another runner may stop or pause it
// between the two, and then it is resumed again.
func (s *Sandbox) connect(ctx context.Context, args []string) (st *stream, started string, err error) {
	for range 3 {
		if started, err = s.ready(ctx); err != nil {
			return nil, "", err
		}
		if st, err = s.execStream(ctx, args); err == nil || !busy(err) {
			break
		}
	}
	return st, started, s.fail(ctx, "connect", err)
}

// unpause resumes the sandbox if somebody has paused it since the session was
// made. Where that fails, the operation that waits reports what becomes of it.
func (s *Sandbox) unpause(ctx context.Context) {
	if c, err := s.inspect(ctx, "inspect"); err == nil && c.State.Paused {
		s.ready(ctx)
	}
}

// ready brings the container to the running state and returns since when it
// runs: a paused one is unpaused, a suspended one is started. A container that
// has never been started is being created by somebody, and is waited for.
func (s *Sandbox) ready(ctx context.Context) (started string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for starts := 0; ; {
		c, err := s.inspect(ctx, "connect")
		if err != nil {
			return "", err
		}
		info := infoOf(c)
		switch info.State {
		case provider.StateRunning:
			return c.State.StartedAt, nil
		case provider.StatePaused:
			err = s.mutate(ctx, func(ctx context.Context) error { return s.p.api.ContainerUnpause(ctx, s.id) })
			if err != nil && !busy(err) { // busy: another caller has unpaused it
				return "", s.fail(ctx, "resume", err)
			}
		case provider.StateCreated:
			if info.Owner.Known() && !info.Owner.Alive() {
				return "", &provider.Error{Op: "connect", Sandbox: s.name, Kind: provider.ErrGone,
					Err: errors.New("whoever was creating it has died"), Hint: "`capyrun gc` removes it"}
			}
			if err := sleep(ctx, 20*time.Millisecond); err != nil {
				return "", s.fail(ctx, "connect", err)
			}
		default:
			if !info.Expires.IsZero() && time.Now().After(info.Expires) {
				return "", &provider.Error{Op: "resume", Sandbox: s.name, Kind: provider.ErrGone, Err: errors.New("its time to live has passed")}
			}
			if starts++; starts > 3 {
				return "", &provider.Error{Op: "resume", Sandbox: s.name, Kind: provider.ErrSessionLost, Err: errors.New(whyStopped(c.State))}
			}
			err = s.mutate(ctx, func(ctx context.Context) error {
				return s.p.api.ContainerStart(ctx, s.id, container.StartOptions{})
			})
			if err != nil && stopping(err) {
				starts--
				err = sleep(ctx, 20*time.Millisecond)
			}
			if err != nil {
				return "", s.fail(ctx, "resume", err)
			}
		}
	}
}

func (s *Sandbox) mutate(ctx context.Context, call func(context.Context) error) error {
	ctx, cancel := s.p.mutating(ctx)
	defer cancel()
	return call(ctx)
}

// execStream runs a part of the agent in the container, as root without
// capabilities, and returns its standard streams.
func (s *Sandbox) execStream(ctx context.Context, args []string) (*stream, error) {
	ex, err := s.p.api.ContainerExecCreate(ctx, s.id, container.ExecOptions{
		User: "0:0", Cmd: args, AttachStdin: true, AttachStdout: true, AttachStderr: true,
	})
	if err != nil {
		return nil, err
	}
	return hijack(ctx, func() (types.HijackedResponse, error) {
		return s.p.api.ContainerExecAttach(ctx, ex.ID, container.ExecAttachOptions{})
	})
}

// restart is the last resort against a sandbox whose agent does not answer.
func (s *Sandbox) restart(ctx context.Context) error {
	broken := s.Breaking()
	now := 0
	err := s.mutate(ctx, func(ctx context.Context) error {
		return s.p.api.ContainerRestart(ctx, s.id, container.StopOptions{Timeout: &now})
	})
	if err == nil {
		s.await(ctx, broken)
	}
	return s.fail(ctx, "restart", err)
}

// explain says why a session broke. The stream ends a moment before the engine
// knows that the container has, so a container that still runs is looked at
// again for a while.
func (s *Sandbox) explain(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	s.mu.Lock()
	st, started := s.stream, s.started
	s.mu.Unlock()
	for end := time.Now().Add(500 * time.Millisecond); ; {
		c, err := s.p.api.ContainerInspect(ctx, s.id)
		switch {
		case notFound(err):
			return errors.New("the sandbox was destroyed")
		case err != nil:
			return fmt.Errorf("the engine does not answer: %w", trimmed{err})
		case !c.State.Running:
			return withStderr(errors.New(whyStopped(c.State)), st)
		case started != "" && c.State.StartedAt != started:
			return errors.New("the sandbox was restarted")
		case time.Now().After(end) || sleep(ctx, 25*time.Millisecond) != nil:
			return withStderr(cause, st)
		}
	}
}

// withStderr adds what the agent printed before it ended.
func withStderr(err error, st *stream) error {
	if st == nil {
		return err
	}
	if text := strings.TrimSpace(st.errorText()); text != "" && !strings.Contains(err.Error(), text) {
		return fmt.Errorf("%w: the agent said: %q", err, text)
	}
	return err
}

// whyStopped says why a container is not running.
func whyStopped(state *container.State) string {
	switch {
	case state.OOMKilled:
		return "out of memory: the kernel ended the sandbox"
	case state.Error != "":
		return "the engine could not run the sandbox: " + state.Error
	}
	switch state.ExitCode {
	case agent.ExitTerminated:
		return "the sandbox was suspended, the engine was stopped, or a process in the sandbox told the agent to end"
	case agent.ExitOwnerLost:
		return "the sandbox ended because its owner was gone"
	case agent.ExitExpired:
		return "the sandbox's time to live has passed"
	case 137:
		return "the sandbox was killed"
	}
	return fmt.Sprintf("the sandbox ended with status %d", state.ExitCode)
}

// inspect asks for the container; one that is missing is gone.
func (s *Sandbox) inspect(ctx context.Context, op string) (container.InspectResponse, error) {
	c, err := s.p.api.ContainerInspect(ctx, s.id)
	if notFound(err) {
		return c, &provider.Error{Op: op, Sandbox: s.name, Kind: provider.ErrGone}
	}
	if err == nil && (c.State.Dead || c.State.Status == "removing") {
		return c, &provider.Error{Op: op, Sandbox: s.name, Kind: provider.ErrGone, Err: errors.New("it is being destroyed")}
	}
	return c, s.fail(ctx, op, err)
}

func (s *Sandbox) fail(ctx context.Context, op string, err error) error {
	if notFound(err) {
		return &provider.Error{Op: op, Sandbox: s.name, Kind: provider.ErrGone}
	}
	return s.p.fail(ctx, op, s.name, err)
}
