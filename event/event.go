// Package event is the stream of what happens in a run: steps that begin and
// end, commands, their output, warnings. Everything that shows a run to
// somebody (progress, JSON lines, reports) is made from it and from nothing else.
//
// Events travel by context: whoever runs something puts a [Sink] into the
// context with [NewContext], and code below it calls [Begin] and [Emit] without
// knowing whether anybody listens.
package event

import (
	"context"
	"sync/atomic"
	"time"
)

// Type says what an event is.
type Type string

const (
	// Start and End enclose a span: a run, a step, a command. Both carry its id.
	Start Type = "start"
	End   Type = "end"
	// Output is a piece of a command's output, in Text and Stream.
	Output Type = "output"
	// Print is a line that the script printed.
	Print Type = "print"
	// Log is a message about the run itself, see Level.
	Log Type = "log"
	// Progress tells how far the span has come, in Text; each replaces the last.
	Progress Type = "progress"
)

// Kind says what a span is.
type Kind string

const (
	KindRun     Kind = "run"     // the whole workflow
	KindStep    Kind = "step"    // flow.step
	KindBranch  Kind = "branch"  // one function of flow.parallel or flow.map
	KindCleanup Kind = "cleanup" // deferred functions and the end of sandboxes
	KindCreate  Kind = "create"  // sandbox.create
	KindExec    Kind = "exec"    // sb.exec
	KindSpawn   Kind = "spawn"   // sb.spawn, until the process has started
	KindFile    Kind = "file"    // a file operation
	KindSandbox Kind = "sandbox" // any other operation on a sandbox
	KindWait    Kind = "wait"    // flow.sleep, flow.wait_until, flow.retry
	KindPull    Kind = "pull"    // an image pull
)

// Level grades a [Log] event.
type Level string

const (
	Info    Level = "info"
	Warning Level = "warning"
)

// SpanID names a span within the process; 0 is none.
type SpanID int64

// Event is one thing that happened. Fields that do not apply are zero.
type Event struct {
	Time     time.Time      `json:"time"`
	Type     Type           `json:"type"`
	Span     SpanID         `json:"span,omitempty"`
	Parent   SpanID         `json:"parent,omitempty"` // on Start
	Kind     Kind           `json:"kind,omitempty"`   // on Start and End
	Name     string         `json:"name,omitempty"`   // on Start and End: a title for people
	Sandbox  string         `json:"sandbox,omitempty"`
	Stream   string         `json:"stream,omitempty"` // on Output: stdout, stderr
	Level    Level          `json:"level,omitempty"`  // on Log
	Text     string         `json:"text,omitempty"`
	Duration time.Duration  `json:"duration_ns,omitempty"` // on End
	Error    string         `json:"error,omitempty"`       // on End: why it failed
	Attrs    map[string]any `json:"attrs,omitempty"`       // JSON values
}

// Sink receives events. Emit is called from many goroutines at once and must
// not block for long: it is called from within the work.
type Sink interface{ Emit(Event) }

// Func makes a function a [Sink].
type Func func(Event)

// Emit calls f.
func (f Func) Emit(e Event) { f(e) }

// Multi sends every event to all of the sinks, in order.
func Multi(sinks ...Sink) Sink {
	return Func(func(e Event) {
		for _, s := range sinks {
			s.Emit(e)
		}
	})
}

type contextKey struct{}

type position struct {
	sink    Sink
	span    SpanID
	sandbox string
}

// NewContext returns a context whose events go to sink.
func NewContext(ctx context.Context, sink Sink) context.Context {
	return context.WithValue(ctx, contextKey{}, position{sink: sink})
}

// Enabled reports whether anybody listens to ctx's events.
func Enabled(ctx context.Context) bool {
	p, _ := ctx.Value(contextKey{}).(position)
	return p.sink != nil
}

// Emit sends e, with the time, span and sandbox of ctx where e has none.
func Emit(ctx context.Context, e Event) {
	p, _ := ctx.Value(contextKey{}).(position)
	if p.sink == nil {
		return
	}
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if e.Span == 0 {
		e.Span = p.span
	}
	if e.Sandbox == "" {
		e.Sandbox = p.sandbox
	}
	p.sink.Emit(e)
}

// Warn sends a warning.
func Warn(ctx context.Context, text string) {
	Emit(ctx, Event{Type: Log, Level: Warning, Text: text})
}

var lastSpan atomic.Int64

// Span is something that takes time. End it exactly once.
type Span struct {
	ctx   context.Context
	start Event
}

// Begin starts a span below that of ctx and returns a context for what happens
// inside it. start gives the kind, name, sandbox and attributes.
func Begin(ctx context.Context, start Event) (context.Context, *Span) {
	p, _ := ctx.Value(contextKey{}).(position)
	if p.sink == nil {
		return ctx, &Span{ctx: ctx}
	}
	start.Type, start.Time = Start, time.Now()
	start.Parent, start.Span = p.span, SpanID(lastSpan.Add(1))
	if start.Sandbox == "" {
		start.Sandbox = p.sandbox
	}
	p.span, p.sandbox = start.Span, start.Sandbox
	p.sink.Emit(start)
	inner := context.WithValue(ctx, contextKey{}, p)
	return inner, &Span{ctx: inner, start: start}
}

// End ends the span; err says why it failed, and attrs may be nil.
func (s *Span) End(err error, attrs map[string]any) {
	e := s.start
	if e.Span == 0 {
		return
	}
	e.Type, e.Time, e.Attrs = End, time.Now(), attrs
	e.Duration = e.Time.Sub(s.start.Time)
	if err != nil {
		e.Error = err.Error()
	}
	Emit(s.ctx, e)
}
