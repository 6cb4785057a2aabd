// Package starlibtest is for programs that embed capyrun and test their own
// workflows: a provider without an engine, and helpers.
package starlibtest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing/fstest"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// Fake is a provider whose sandboxes are in memory: files are real, commands
// are Go functions, see [Fake.Handle], and servers are the test's own, see
// [Fake.Serve]. It enforces no limits and has no users or permissions. It is
// safe for use from many goroutines.
type Fake struct {
	mu        sync.Mutex
	sandboxes map[string]*Sandbox
	handlers  []handler
	created   []string
	fail      map[string]error
	servers   map[string]string // addresses by port
	running   sync.WaitGroup    // background processes
}

type handler struct {
	pattern string
	fn      Handler
}

// New returns a provider whose sandboxes know the commands true, false, exit,
// echo, cat and sleep.
func New() *Fake {
	f := &Fake{sandboxes: map[string]*Sandbox{}, fail: map[string]error{}, servers: map[string]string{}}
	for pattern, fn := range map[string]Handler{
		"true":    func(context.Context, *Call) int { return 0 },
		"false":   func(context.Context, *Call) int { return 1 },
		"exit *":  exit,
		"echo *":  echo,
		"cat":     cat,
		"cat *":   cat,
		"sleep *": sleep,
	} {
		f.Handle(pattern, fn)
	}
	return f
}

// Handle makes fn run the commands that match a pattern: a command line, in
// which * at the end stands for anything. A list of arguments is matched as if
// written for a shell. Later patterns take precedence.
//
// A command that nothing matches ends with code 127, as in a shell; given as a
// list it fails with [provider.ErrNotStarted].
func (f *Fake) Handle(pattern string, fn Handler) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handlers = append(f.handlers, handler{pattern, fn})
}

// Serve makes the server at an address of this host, such as that of an
// httptest.Server, answer on a port of every sandbox. Without an address nobody
// listens there any more.
func (f *Fake) Serve(port int, address string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if address == "" {
		delete(f.servers, strconv.Itoa(port))
		return
	}
	f.servers[strconv.Itoa(port)] = address
}

// Fail makes an operation fail from now on: "create", "exec", "start", "destroy",
// or the method's name in lower case. A nil err lets it succeed again.
func (f *Fake) Fail(op string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fail[op] = err
}

// Created returns the names of all sandboxes that were ever created, in order.
func (f *Fake) Created() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.created)
}

// Names returns the names of the sandboxes that exist, sorted.
func (f *Fake) Names() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := []string{}
	for name := range f.sandboxes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// enter reports why an operation cannot take place.
func (f *Fake) enter(ctx context.Context, op, sandbox string) error {
	if ctx.Err() != nil {
		return &provider.Error{Op: op, Sandbox: sandbox, Err: context.Cause(ctx)}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.fail[op]; err != nil {
		return &provider.Error{Op: op, Sandbox: sandbox, Err: err}
	}
	return nil
}

// Create implements [provider.Provider].
func (f *Fake) Create(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	if err := spec.Validate(); err != nil {
		return nil, &provider.Error{Op: "create", Sandbox: spec.Name, Err: err}
	}
	if err := f.enter(ctx, "create", spec.Name); err != nil {
		return nil, err
	}
	spec.Name = cmp.Or(spec.Name, provider.GenerateName())
	spec.Image = cmp.Or(spec.Image, "debian:bookworm-slim")
	spec.Egress = cmp.Or(spec.Egress, provider.EgressNone)
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.sandboxes[spec.Name]; old != nil {
		if !spec.Replace {
			return nil, &provider.Error{Op: "create", Sandbox: spec.Name, Kind: provider.ErrExists}
		}
		old.end()
	}
	sb := &Sandbox{fake: f, spec: spec, created: time.Now(), state: provider.StateRunning, files: fstest.MapFS{}, procs: map[string]*process{}}
	sb.ctx, sb.cancel = context.WithCancelCause(context.Background())
	sb.makeDir("workspace")
	sb.makeDir("tmp")
	sb.makeDir("skills")
	f.sandboxes[spec.Name] = sb
	f.created = append(f.created, spec.Name)
	return sb, nil
}

// Open implements [provider.Provider].
func (f *Fake) Open(ctx context.Context, name string) (provider.Sandbox, error) {
	if err := f.enter(ctx, "open", name); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if sb := f.sandboxes[name]; sb != nil {
		return sb, nil
	}
	return nil, &provider.Error{Op: "open", Sandbox: name, Kind: provider.ErrGone}
}

// List implements [provider.Provider].
func (f *Fake) List(ctx context.Context) ([]provider.Info, error) {
	if err := f.enter(ctx, "list", ""); err != nil {
		return nil, err
	}
	var infos []provider.Info
	for _, name := range f.Names() {
		if sb, err := f.Open(ctx, name); err == nil {
			info, _ := sb.Info(ctx)
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// Destroy implements [provider.Provider].
func (f *Fake) Destroy(ctx context.Context, name string) error {
	if err := f.enter(ctx, "destroy", name); err != nil {
		return err
	}
	f.mu.Lock()
	sb := f.sandboxes[name]
	delete(f.sandboxes, name)
	f.mu.Unlock()
	if sb == nil {
		return &provider.Error{Op: "destroy", Sandbox: name, Kind: provider.ErrGone}
	}
	sb.end()
	return nil
}

// Sweep implements [provider.Provider]. The owner of every sandbox is this
// process, which lives, so that nothing is removed.
func (f *Fake) Sweep(ctx context.Context) (provider.SweepReport, error) {
	return provider.SweepReport{}, f.enter(ctx, "sweep", "")
}

// Close ends all commands and waits for them.
func (f *Fake) Close() error {
	f.mu.Lock()
	for _, sb := range f.sandboxes {
		sb.cancel(errEnded)
	}
	f.mu.Unlock()
	f.running.Wait()
	return nil
}

var errEnded error = &provider.Error{Kind: provider.ErrGone, Err: errors.New("the sandbox was destroyed")}

// find returns what runs a command, nil where nothing matches.
func (f *Fake) find(cmd *provider.Command) Handler {
	f.mu.Lock()
	defer f.mu.Unlock()
	line := strings.TrimSpace(cmd.String())
	for _, h := range slices.Backward(f.handlers) {
		prefix, open := strings.CutSuffix(h.pattern, "*")
		if line == h.pattern || open && strings.HasPrefix(line, prefix) {
			return h.fn
		}
	}
	return nil
}

func gone(op, name string) error {
	return &provider.Error{Op: op, Sandbox: name, Err: errEnded}
}
