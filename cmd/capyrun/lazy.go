package main

import (
	"context"
	"errors"
	"sync"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
)

// lazyProvider connects to the engine when a workflow first needs it, so that
// one that does not starts quicker and needs no engine. It also knows which of
// the run's sandboxes still exist.
type lazyProvider struct {
	config docker.Config

	mu   sync.Mutex
	real provider.Provider
	live map[string]bool
}

func (l *lazyProvider) connect(ctx context.Context) (provider.Provider, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.real != nil {
		return l.real, nil
	}
	p, err := docker.New(ctx, l.config)
	if err != nil {
		if errors.Is(err, provider.ErrInvalid) {
			err = &configError{"configuration", err}
		}
		return nil, err
	}
	l.real = p
	return p, nil
}

func (l *lazyProvider) mark(name string, live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live == nil {
		l.live = map[string]bool{}
	}
	if live {
		l.live[name] = true
	} else {
		delete(l.live, name)
	}
}

// sandboxes is how many of those that were created are not destroyed yet.
func (l *lazyProvider) sandboxes() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.live)
}

func (l *lazyProvider) Create(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	p, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	sb, err := p.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	l.mark(sb.Name(), true)
	return countedSandbox{sb, l}, nil
}

func (l *lazyProvider) Open(ctx context.Context, name string) (provider.Sandbox, error) {
	p, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	sb, err := p.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return countedSandbox{sb, l}, nil
}

func (l *lazyProvider) List(ctx context.Context) ([]provider.Info, error) {
	p, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	return p.List(ctx)
}

func (l *lazyProvider) Destroy(ctx context.Context, name string) error {
	p, err := l.connect(ctx)
	if err != nil {
		return err
	}
	return l.destroyed(name, p.Destroy(ctx, name))
}

func (l *lazyProvider) Sweep(ctx context.Context) (provider.SweepReport, error) {
	p, err := l.connect(ctx)
	if err != nil {
		return provider.SweepReport{}, err
	}
	return p.Sweep(ctx)
}

func (l *lazyProvider) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.real == nil {
		return nil
	}
	return l.real.Close()
}

// destroyed notes the end of a sandbox, and returns err.
func (l *lazyProvider) destroyed(name string, err error) error {
	if err == nil || errors.Is(err, provider.ErrGone) {
		l.mark(name, false)
	}
	return err
}

type countedSandbox struct {
	provider.Sandbox
	l *lazyProvider
}

func (s countedSandbox) Destroy(ctx context.Context) error {
	return s.l.destroyed(s.Name(), s.Sandbox.Destroy(ctx))
}
