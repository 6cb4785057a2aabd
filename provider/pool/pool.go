// Package pool starts sandboxes ahead of time, so that a create costs
// milliseconds. It wraps any [provider.Provider].
//
// A sandbox from the pool is handed out once and never used again. It was
// started before anybody knew what for, so it holds nothing of its later user:
// the environment, and with it every secret, is given to each command instead.
package pool

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// Defaults of [Options].
const (
	DefaultAhead  = 2
	DefaultTotal  = 8
	DefaultMemory = int64(8 << 30)
)

// Options bound what waits in a pool. The zero value is useful.
type Options struct {
	// Ahead is how many sandboxes of each spec wait. 0: [DefaultAhead].
	Ahead int
	// Total is how many wait altogether. Beyond it, those of the spec that was
	// asked for longest ago make room. 0: [DefaultTotal].
	Total int
	// Memory bounds the sum of the memory limits of those that wait, in bytes; an
	// idle sandbox itself takes some ten MiB. 0: [DefaultMemory].
	Memory int64
}

// atOnce is how many sandboxes are started ahead at the same time: what is
// asked for now goes before what may be asked for.
const atOnce = 2

// closeTimeout bounds the removal of what nobody has asked for.
const closeTimeout = time.Minute

// Provider is a [provider.Provider] with a pool before it. Its methods are safe
// to call at once.
//
// The first create of a spec is an ordinary one, and makes others of its kind
// start in the background. Specs are of one kind when all that a container is
// made from is equal. A spec that names its sandbox, labels it or lets it
// outlive its owner is never pooled.
//
// [provider.Spec.Env] of a pooled sandbox is known to this provider alone:
// another runner that opens the sandbox does not see it.
type Provider struct {
	provider.Provider
	o      Options
	ctx    context.Context // of what is started ahead
	cancel context.CancelFunc
	starts chan struct{}
	work   sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	clock   int // counts creates
	shelves map[string]*shelf
	waiting map[string]struct{} // names that are not handed out
	envs    map[string]map[string]string
}

// shelf holds the sandboxes of one kind.
type shelf struct {
	spec  provider.Spec
	slots []*slot // the oldest first
	asked int     // clock of the last create
}

// slot is a sandbox that is being started or waits. Whoever has taken it from
// its shelf owns it.
type slot struct {
	name string
	done chan struct{} // closed when it has been started, or sb could not be
	stop context.CancelFunc
	sb   provider.Sandbox
	err  error
}

// New wraps a provider, which [Provider.Close] closes.
func New(p provider.Provider, o Options) *Provider {
	o.Ahead = cmp.Or(o.Ahead, DefaultAhead)
	o.Total = cmp.Or(o.Total, DefaultTotal)
	o.Memory = cmp.Or(o.Memory, DefaultMemory)
	pl := &Provider{
		Provider: p, o: o,
		starts:  make(chan struct{}, atOnce),
		shelves: map[string]*shelf{},
		waiting: map[string]struct{}{},
		envs:    map[string]map[string]string{},
	}
	pl.ctx, pl.cancel = context.WithCancel(context.Background())
	return pl
}

// Create implements [provider.Provider].
func (p *Provider) Create(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if !poolable(&spec) {
		return p.Provider.Create(ctx, spec)
	}
	env := spec.Env
	spec.Env = nil
	sb, err := p.warm(ctx, spec)
	if err == nil && sb == nil {
		sb, err = p.Provider.Create(ctx, spec)
	}
	if err != nil {
		return nil, err
	}
	p.fill(spec)
	return p.handOut(sb, env), nil
}

// poolable reports whether nothing in a spec is for one sandbox alone.
func poolable(s *provider.Spec) bool {
	return s.Name == "" && len(s.Labels) == 0 && s.TTL == 0 && !s.Keep && !s.Replace
}

// warm returns a sandbox of the spec's kind that was started ahead, nil where
// there is none.
func (p *Provider) warm(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	for s := p.take(spec); s != nil; s = p.take(spec) {
		select {
		case <-s.done:
		case <-ctx.Done():
		}
		if ctx.Err() == nil && s.err == nil {
			// It may have been removed or stopped while it waited.
			if info, err := s.sb.Info(ctx); err == nil && info.State == provider.StateRunning {
				return s.sb, nil
			}
		}
		p.inBackground(func() { p.discard(s) }) // what fails is left to a sweep
		if ctx.Err() != nil {
			return nil, &provider.Error{Op: "create", Err: context.Cause(ctx)}
		}
	}
	return nil, nil
}

// take takes a sandbox of the spec's kind from its shelf, nil where there is
// none.
func (p *Provider) take(spec provider.Spec) *slot {
	p.mu.Lock()
	defer p.mu.Unlock()
	sh := p.shelves[kind(spec)]
	if sh == nil || len(sh.slots) == 0 {
		return nil
	}
	s := sh.slots[0]
	sh.slots = sh.slots[1:]
	return s
}

// fill starts what is missing on the spec's shelf, and makes room for it.
func (p *Provider) fill(spec provider.Spec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.clock++
	sh := p.shelves[kind(spec)]
	if sh == nil {
		sh = &shelf{spec: spec.WithDefaults()}
		p.shelves[kind(spec)] = sh
	}
	sh.asked = p.clock
	for len(sh.slots) < p.o.Ahead && p.makeRoom(sh) {
		s := &slot{name: provider.GenerateName(), done: make(chan struct{})}
		p.waiting[s.name] = struct{}{}
		var ctx context.Context
		ctx, s.stop = context.WithCancel(p.ctx)
		sh.slots = append(sh.slots, s)
		p.work.Go(func() { p.start(ctx, sh, s) })
	}
}

// makeRoom reports whether one more sandbox may wait on a shelf. Where the pool
// is full it gives away what was asked for longest ago. p.mu is held.
func (p *Provider) makeRoom(sh *shelf) bool {
	memory := sh.spec.Memory
	if memory > p.o.Memory {
		return false
	}
	for {
		count, sum := 0, memory
		var oldest *shelf
		for _, other := range p.shelves {
			count += len(other.slots)
			sum += int64(len(other.slots)) * other.spec.Memory
			if other != sh && len(other.slots) > 0 && (oldest == nil || other.asked < oldest.asked) {
				oldest = other
			}
		}
		if count < p.o.Total && sum <= p.o.Memory {
			return true
		}
		if oldest == nil {
			return false
		}
		last := len(oldest.slots) - 1
		s := oldest.slots[last]
		oldest.slots = oldest.slots[:last]
		p.work.Go(func() { p.discard(s) })
	}
}

// start starts a slot's sandbox.
func (p *Provider) start(ctx context.Context, sh *shelf, s *slot) {
	defer s.stop()
	defer close(s.done)
	spec := sh.spec
	spec.Name = s.name
	select {
	case p.starts <- struct{}{}:
		defer func() { <-p.starts }()
		s.sb, s.err = p.Provider.Create(ctx, spec)
	case <-ctx.Done():
		s.err = context.Cause(ctx)
	}
	if s.err == nil {
		return
	}
	// Not tried again until somebody asks, who then gets the error.
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, s.name)
	sh.slots = slices.DeleteFunc(sh.slots, func(other *slot) bool { return other == s })
}

// discard ends a slot that nobody wants.
func (p *Provider) discard(s *slot) error {
	s.stop()
	<-s.done
	if s.err != nil {
		return nil // a failed create leaves nothing
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.sb.Destroy(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, s.name)
	return err
}

// inBackground runs f, for Close to wait for.
func (p *Provider) inBackground(f func()) {
	p.mu.Lock()
	open := !p.closed
	if open {
		p.work.Go(f)
	}
	p.mu.Unlock()
	if !open {
		f()
	}
}

// handOut makes a sandbox its user's.
func (p *Provider) handOut(sb provider.Sandbox, env map[string]string) provider.Sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, sb.Name())
	if len(env) == 0 {
		return sb
	}
	p.envs[sb.Name()] = maps.Clone(env)
	return &sandbox{Sandbox: sb, pool: p, env: p.envs[sb.Name()]}
}

// Open implements [provider.Provider].
func (p *Provider) Open(ctx context.Context, name string) (provider.Sandbox, error) {
	sb, err := p.Provider.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if env := p.envs[name]; env != nil {
		return &sandbox{Sandbox: sb, pool: p, env: env}, nil
	}
	return sb, nil
}

// List implements [provider.Provider]. It leaves out what waits in this pool.
func (p *Provider) List(ctx context.Context) ([]provider.Info, error) {
	list, err := p.Provider.List(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(list, func(i provider.Info) bool {
		_, waits := p.waiting[i.Name]
		return waits
	}), err
}

// Destroy implements [provider.Provider].
func (p *Provider) Destroy(ctx context.Context, name string) error {
	err := p.Provider.Destroy(ctx, name)
	if err == nil {
		p.forget(name)
	}
	return err
}

func (p *Provider) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.envs, name)
}

// Close destroys what nobody has asked for, and closes the provider.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	var left []*slot
	for _, sh := range p.shelves {
		left = append(left, sh.slots...)
		sh.slots = nil
	}
	p.mu.Unlock()
	p.cancel()
	errs := make([]error, len(left)+1)
	var discards sync.WaitGroup
	for i, s := range left {
		discards.Go(func() { errs[i] = p.discard(s) })
	}
	discards.Wait()
	p.work.Wait()
	errs[len(left)] = p.Provider.Close()
	return errors.Join(errs...)
}
