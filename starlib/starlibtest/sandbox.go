package starlibtest

import (
	"context"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing/fstest"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// Sandbox is a sandbox of a [Fake].
type Sandbox struct {
	fake    *Fake
	spec    provider.Spec
	created time.Time
	ctx     context.Context // ends with the sandbox
	cancel  context.CancelCauseFunc

	mu      sync.Mutex
	state   provider.State
	files   fstest.MapFS // by path without the leading slash
	procs   map[string]*process
	order   []string // ids in order of their start
	running map[*running]struct{}
}

// enter reports why an operation cannot take place, and resumes the sandbox.
func (s *Sandbox) enter(ctx context.Context, op string) error {
	if err := s.fake.enter(ctx, op, s.spec.Name); err != nil {
		return err
	}
	if s.ctx.Err() != nil {
		return gone(op, s.spec.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = provider.StateRunning
	return nil
}

func (s *Sandbox) end() { s.cancel(errEnded) }

// Name implements [provider.Sandbox].
func (s *Sandbox) Name() string { return s.spec.Name }

// Spec returns what the sandbox was created with.
func (s *Sandbox) Spec() provider.Spec { return s.spec }

// Info implements [provider.Sandbox].
func (s *Sandbox) Info(ctx context.Context) (provider.Info, error) {
	if err := s.fake.enter(ctx, "info", s.spec.Name); err != nil {
		return provider.Info{}, err
	}
	if s.ctx.Err() != nil {
		return provider.Info{}, gone("info", s.spec.Name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	info := provider.Info{
		Name: s.spec.Name, ID: s.spec.Name, Image: s.spec.Image, State: s.state, Created: s.created,
		Owner: provider.Self(), OwnerAlive: true, Egress: s.spec.Egress, AllowHosts: s.spec.AllowHosts,
		Keep: s.spec.Keep, Labels: s.spec.Labels,
	}
	if s.spec.TTL > 0 {
		info.Expires = s.created.Add(s.spec.TTL)
	}
	return info, nil
}

// Suspend implements [provider.Sandbox].
func (s *Sandbox) Suspend(ctx context.Context) error {
	if err := s.enter(ctx, "suspend"); err != nil {
		return err
	}
	s.killAll()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = provider.StateSuspended
	return nil
}

// Resume implements [provider.Sandbox].
func (s *Sandbox) Resume(ctx context.Context) error { return s.enter(ctx, "resume") }

// Destroy implements [provider.Sandbox].
func (s *Sandbox) Destroy(ctx context.Context) error { return s.fake.Destroy(ctx, s.spec.Name) }

// Stats implements [provider.Sandbox]. It reports the limits, and how many
// commands run.
func (s *Sandbox) Stats(ctx context.Context) (provider.Stats, error) {
	if err := s.enter(ctx, "stats"); err != nil {
		return provider.Stats{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return provider.Stats{PIDs: int64(len(s.running)), MemoryLimit: s.spec.Memory, PIDsLimit: s.spec.PIDs}, nil
}

// Dial implements [provider.Sandbox]. It connects to what [Fake.Serve] names.
func (s *Sandbox) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if err := s.enter(ctx, "dial"); err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		err = syscall.ECONNREFUSED
	}
	s.fake.mu.Lock()
	target, ok := s.fake.servers[port]
	s.fake.mu.Unlock()
	if ok && network == "tcp" {
		var conn net.Conn
		if conn, err = new(net.Dialer).DialContext(ctx, "tcp", target); err == nil {
			return conn, nil
		}
	}
	return nil, &provider.Error{Op: "dial " + network + " " + address, Sandbox: s.spec.Name, Err: err}
}

// Process implements [provider.Sandbox].
func (s *Sandbox) Process(ctx context.Context, idOrTag string) (provider.Process, error) {
	if err := s.enter(ctx, "process"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.procs[idOrTag]; p != nil {
		return p, nil
	}
	for _, id := range slices.Backward(s.order) {
		if s.procs[id].cmd.Tag == idOrTag {
			return s.procs[id], nil
		}
	}
	return nil, &provider.Error{Op: "process " + strconv.Quote(idOrTag), Sandbox: s.spec.Name, Kind: provider.ErrGone}
}

// Processes implements [provider.Sandbox]. Of the commands in the foreground it
// lists none.
func (s *Sandbox) Processes(ctx context.Context) ([]provider.ProcessInfo, error) {
	if err := s.enter(ctx, "processes"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	procs := make([]*process, 0, len(s.order))
	for _, id := range s.order {
		procs = append(procs, s.procs[id])
	}
	s.mu.Unlock()
	infos := make([]provider.ProcessInfo, len(procs))
	for i, p := range procs {
		infos[i], _ = p.Info(ctx)
	}
	return infos, nil
}

// Kill implements [provider.Sandbox].
func (s *Sandbox) Kill(ctx context.Context, tags ...string) (int, error) {
	if err := s.enter(ctx, "kill"); err != nil {
		return 0, err
	}
	return s.kill(func(r *running) bool { return slices.Contains(tags, r.tag) }), nil
}

// KillAll implements [provider.Sandbox].
func (s *Sandbox) KillAll(ctx context.Context) (int, error) {
	if err := s.enter(ctx, "kill all"); err != nil {
		return 0, err
	}
	return s.killAll(), nil
}

func (s *Sandbox) killAll() int { return s.kill(func(*running) bool { return true }) }

func (s *Sandbox) kill(match func(*running) bool) int {
	s.mu.Lock()
	var doomed []*running
	for r := range s.running {
		if match(r) {
			doomed = append(doomed, r)
		}
	}
	s.mu.Unlock()
	for _, r := range doomed {
		r.kill("SIGKILL")
		<-r.done
	}
	return len(doomed)
}
