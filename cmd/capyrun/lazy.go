package main

import (
	"context"
	"errors"
	"sync"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/provider/pool"
)

// lazyProvider connects to the engine when a workflow first needs it, so that
// one that does not starts quicker and needs no engine.
type lazyProvider struct {
	config docker.Config
	warm   int // how many sandboxes of each kind are started ahead

	mu   sync.Mutex
	real provider.Provider
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
	if l.warm > 0 {
		l.real = pool.New(p, pool.Options{Ahead: l.warm, Total: max(l.warm, pool.DefaultTotal)})
	}
	return l.real, nil
}

func (l *lazyProvider) Create(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	p, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	return p.Create(ctx, spec)
}

func (l *lazyProvider) Open(ctx context.Context, name string) (provider.Sandbox, error) {
	p, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	return p.Open(ctx, name)
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
	return p.Destroy(ctx, name)
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
