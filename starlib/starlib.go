// Package starlib runs capyrun workflows: Starlark programs whose builtins
// drive sandboxes. It is the embedding API; the command line is built on it.
//
//	rt := starlib.New(provider, starlib.Options{})
//	res, err := rt.RunFile(ctx, "build.star", starlib.Params{"ref": "main"})
//
// A run executes the file's top level and then, if there is one, its function
// main with the parameters. What main returns is the result. When the run ends,
// however it ends, deferred calls are made, the sandboxes that it created are
// destroyed and all its goroutines have ended before RunFile returns.
//
// # Dialect
//
// Sets, while loops and control flow at the top level are on, and global
// variables may be assigned again at the top level, without which a loop there
// could not count. Functions see globals but cannot assign them. Recursion is
// off. load("lib/x.star", "f") is relative to the loading file and cannot leave
// the workflow's directory; each module runs once per run and its globals are
// frozen afterwards.
//
// Predeclared are the modules sandbox, flow, assert, host, json, math, time and
// re, and struct. What they do is written at the module variables of the
// packages below this one.
package starlib

import (
	"io/fs"
	"os"
	"slices"
	"time"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// Options configure a [Runtime]. The zero value is useful.
type Options struct {
	// Events gets everything that happens in a run. Nil: what the context of the
	// run says, see package event.
	Events event.Sink
	// Print gets each line that a script prints, without the newline. It is
	// called from many goroutines at once. Nil: lines are only events.
	Print func(line string)
	// Limits bound what scripts use.
	Limits Limits
	// Args is host.args.
	Args []string
	// AllowEnv names the variables that host.env may read.
	AllowEnv []string
	// Getenv looks them up. Nil: [os.LookupEnv].
	Getenv func(name string) (value string, set bool)
	// AllowRead are directories that scripts may read beside the workflow's.
	AllowRead []string
	// Out is the directory that scripts may write to; it is made. Empty: they
	// may not write.
	Out string
	// FS holds the workflow, what it loads and what it reads. Paths are then
	// paths in it. Nil: the directory of the workflow's file.
	FS fs.FS
	// ExecTimeout bounds commands for which the script gives no timeout.
	// 0: 5 minutes; less: none.
	ExecTimeout time.Duration
	// Keep says which sandboxes outlive the run.
	Keep KeepPolicy
	// Builtins are predeclared beside the modules, and take precedence over
	// them. They are frozen.
	Builtins starlark.StringDict
	// Clock is the time that scripts see. Nil: [time.Now].
	Clock func() time.Time
	// CleanupGrace is how long deferred calls and the destruction of sandboxes
	// may each take after the end or the cancellation of a run. 0: 60 seconds.
	CleanupGrace time.Duration
	// UpdateGolden makes assert.golden write files instead of comparing.
	UpdateGolden bool
}

// KeepPolicy says which of a run's sandboxes are left when it ends. Those that
// the script created with keep or ttl are always left.
type KeepPolicy int

const (
	KeepNever     KeepPolicy = iota // destroy them
	KeepOnFailure                   // leave them where the run failed or was killed
	KeepAlways                      // leave them
)

// Limits bound what the scripts of one run use. A script that goes beyond ends
// with an [Error] of kind [KindLimit]. Zero fields are defaults, negative ones
// switch the limit off.
type Limits struct {
	// Steps counts computation steps of all threads together; a step is some
	// ten nanoseconds. Default: 1e9.
	Steps int64
	// Time bounds the run without its cleanup. Default: none.
	Time time.Duration
	// Heap bounds how much the process's live heap grows during the run, in
	// bytes; runs at once are not told apart. Default: 512 MiB.
	Heap int64
	// Output bounds what scripts print, and the result as JSON, in bytes each.
	// Default: 16 MiB.
	Output int64
	// Depth bounds how deep values may nest. Default: 1000.
	Depth int
}

func (l Limits) withDefaults() Limits {
	def(&l.Steps, 1e9)
	def(&l.Heap, 512<<20)
	def(&l.Output, 16<<20)
	def(&l.Depth, script.MaxNesting)
	return l
}

// def sets a default and makes "off" the highest value.
func def[N int | int64](n *N, value N) {
	switch {
	case *n == 0:
		*n = value
	case *n < 0:
		*n = 1 << 62
	}
}

// Runtime runs workflows. It is safe to run many at once.
type Runtime struct {
	provider provider.Provider
	options  Options
}

// New returns a runtime. Without a provider, scripts run but cannot create
// sandboxes. The runtime holds nothing that would have to be closed, and the
// provider remains the caller's.
func New(p provider.Provider, o Options) *Runtime {
	if o.ExecTimeout == 0 {
		o.ExecTimeout = 5 * time.Minute
	}
	o.ExecTimeout = max(o.ExecTimeout, 0)
	if o.CleanupGrace == 0 {
		o.CleanupGrace = time.Minute
	}
	if o.Getenv == nil {
		o.Getenv = os.LookupEnv
	}
	o.Limits = o.Limits.withDefaults()
	o.Builtins.Freeze()
	return &Runtime{provider: p, options: o}
}

// config is what the modules see of the options.
func (rt *Runtime) config(files *script.Files) script.Config {
	o := &rt.options
	return script.Config{
		Provider:     rt.provider,
		Files:        files,
		AllowsEnv:    func(name string) bool { return slices.Contains(o.AllowEnv, name) },
		Getenv:       o.Getenv,
		Print:        o.Print,
		Clock:        o.Clock,
		MayKeep:      o.Keep != KeepNever,
		ExecTimeout:  o.ExecTimeout,
		Steps:        uint64(o.Limits.Steps),
		Output:       o.Limits.Output,
		UpdateGolden: o.UpdateGolden,
	}
}

// Result is what a run that succeeded returns.
type Result struct {
	// Value is what main returned as JSON-like Go values: nil, bool, int64
	// (json.Number beyond its range), float64, string, []any, map[string]any.
	Value any
	// Kept are the names of the sandboxes that the run created and left.
	Kept []string
	// Steps is how many computation steps the scripts took.
	Steps uint64
	// Duration is the time from the start of the run to the end of its cleanup.
	Duration time.Duration
}
