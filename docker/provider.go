// Package docker is the sandbox provider over a Docker Engine, version 20.10
// (API 1.41) or newer.
//
// A sandbox is one container whose first process is capyrun's agent; all work
// in it goes through the agent's session, see package agent. The engine is
// asked only to create, start, stop and remove.
//
// Everything that is created carries the labels of package provider, and
// nothing without them is ever stopped, removed or overwritten.
//
// Podman's service for the Docker API, as root, works as an engine too; this is
// what is known of release 4.3. An image has its full name in
// [provider.Info.Image], such as localhost/busybox:latest. To suspend a sandbox
// that is used meanwhile may fail with "container state improper". Volume drivers
// and open egress have not been tried, nor Podman without root. Podman sets
// resource limits of its own, and where it may not, Create fails with what its
// runtime says ("error setting rlimits"); default_ulimits in containers.conf
// changes them.
package docker

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/docker/docker/client"
	"golang.org/x/sync/semaphore"

	"github.com/capybara-hq/capyrun/provider"
)

// Provider is a [provider.Provider]. Its methods are safe to call at once.
type Provider struct {
	cfg Config
	api *client.Client

	arch    string // of the engine, as Go spells it
	podman  bool   // the engine is Podman's service
	creates *semaphore.Weighted
	agent   agentStore
	images  keyedLock
	warned  sync.Map // warnings given once: text -> struct{}

	failed     sync.Map       // instances of creates that may have left something: string -> struct{}
	background sync.WaitGroup // removals that nobody waits for
	closing    chan struct{}  // closed by Close
	mu         sync.Mutex
	sessions   map[*Sandbox]struct{}
	closed     bool
}

var _ provider.Provider = (*Provider)(nil)

// New connects to the engine. It fails with [provider.ErrUnreachable] where
// none answers, and with [*provider.InvalidError] for a bad configuration. It
// changes nothing on the engine.
func New(ctx context.Context, cfg Config) (*Provider, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	api, err := client.NewClientWithOpts(
		transportSecurity(cfg.Endpoint),
		client.WithVersionFromEnv(),
		client.WithHost(cfg.Endpoint),
		client.WithAPIVersionNegotiation(),
	)
	if err != nil {
		if errors.Is(err, provider.ErrInvalid) {
			return nil, err
		}
		return nil, &provider.InvalidError{Field: "endpoint", Value: cfg.Endpoint, Reason: err.Error()}
	}
	p := &Provider{
		cfg:      cfg,
		api:      api,
		creates:  semaphore.NewWeighted(int64(2 * runtime.NumCPU())),
		sessions: map[*Sandbox]struct{}{},
		closing:  make(chan struct{}),
	}
	// The version tells enough and costs a millisecond; the engine's info costs
	// thirty.
	version, err := api.ServerVersion(ctx)
	if err != nil {
		api.Close()
		return nil, p.fail(ctx, "connect", "", err)
	}
	if version.Os != "linux" {
		api.Close()
		return nil, &provider.Error{Op: "connect", Kind: provider.ErrUnsupported, Err: fmt.Errorf("the engine at %s runs %s containers, not linux ones", cfg.Endpoint, version.Os)}
	}
	p.arch, p.podman = version.Arch, isPodman(version)
	return p, nil
}

// Close ends the sessions and waits for background removals. It destroys no
// sandbox.
func (p *Provider) Close() error {
	p.mu.Lock()
	if !p.closed {
		close(p.closing)
	}
	p.closed = true
	open := make([]*Sandbox, 0, len(p.sessions))
	for s := range p.sessions {
		open = append(open, s)
	}
	p.mu.Unlock()
	for _, s := range open {
		s.close()
	}
	p.background.Wait()
	return p.api.Close()
}

// inBackground runs f, for Close to wait for. It reports false, and does not
// run f, where the provider is closed.
func (p *Provider) inBackground(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.background.Go(f)
	return true
}

// canceled returns the cause of ctx's end, nil while it has not ended.
func canceled(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// strip removes the slash that the engine puts before container names.
func strip(name string) string { return strings.TrimPrefix(name, "/") }

// keyedLock is a mutex for each key, to be waited for under a context.
type keyedLock struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// lock waits for the key and returns its unlock.
func (k *keyedLock) lock(ctx context.Context, key string) (func(), error) {
	for {
		k.mu.Lock()
		released, taken := k.held[key]
		if !taken {
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			released = make(chan struct{})
			k.held[key] = released
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(released)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-released:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
