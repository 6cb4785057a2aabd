// Package report shows a run to somebody. Everything it shows is made from the
// run's events alone, and everything that may come from a sandbox or a script
// is cleaned of control characters before a terminal sees it.
package report

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/capybara-hq/capyrun/event"
)

// Mode says how progress is shown.
type Mode string

const (
	// Plain writes one line for every step that finished.
	Plain Mode = "plain"
	// TTY keeps a live tree of running steps at the end of a terminal.
	TTY Mode = "tty"
	// None writes what the script prints and warnings, and nothing else.
	None Mode = "none"
)

// interval bounds how often the live tree is redrawn.
const interval = 100 * time.Millisecond

// ProgressOptions configure a [Progress]. The zero value is plain and without colour.
type ProgressOptions struct {
	Mode  Mode // empty: Plain
	Color bool
	// Size returns the terminal's columns and rows; asked before every redraw.
	// Nil, or a size of 0: 80 x 24.
	Size func() (columns, rows int)
}

// Progress is an [event.Sink] that shows a run as it goes. Its methods are safe
// to call at once. Close it before anything else is written to the same terminal.
type Progress struct {
	w    io.Writer
	mode Mode
	size func() (int, int)

	mu     sync.Mutex
	tree   tree
	screen screen
	above  []string // lines to write above the live tree at the next redraw
	closed bool

	stop, stopped chan struct{}
}

// NewProgress returns a progress display that writes to w. What w fails to take
// is lost: a run does not fail because nobody watches it.
func NewProgress(w io.Writer, o ProgressOptions) *Progress {
	p := newProgress(w, o)
	if p.mode == TTY {
		go p.redraw()
	} else {
		close(p.stopped)
	}
	return p
}

func newProgress(w io.Writer, o ProgressOptions) *Progress {
	p := &Progress{w: w, mode: o.Mode, screen: screen{colour: o.Color}, stop: make(chan struct{}), stopped: make(chan struct{})}
	if p.mode == "" {
		p.mode = Plain
	}
	p.size = func() (int, int) {
		columns, rows := 0, 0
		if o.Size != nil {
			columns, rows = o.Size()
		}
		if columns < 1 || rows < 1 {
			return 80, 24
		}
		return columns, rows
	}
	return p
}

// Emit takes an event. With a live tree it only remembers it: a terminal that
// is stopped does not stop the run.
func (p *Progress) Emit(e event.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	ended := p.tree.apply(e)
	if text, ok := p.line(e, ended); ok {
		p.print(text)
	}
}

// Message writes a line of the program itself, such as what it waits for.
func (p *Progress) Message(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.print(text)
	}
}

func (p *Progress) print(text string) {
	if p.mode == TTY {
		p.above = append(p.above, text)
		return
	}
	fmt.Fprintln(p.w, text)
}

// line is what is printed for an event, if anything is.
func (p *Progress) line(e event.Event, ended *node) (string, bool) {
	colour := p.screen.colour
	switch {
	case e.Type == event.Print:
		return Clean(e.Text), true
	case e.Type == event.Log && e.Level == event.Warning:
		return paint(colour, yellow, "warning:") + " " + Clean(e.Text), true
	case p.mode == None:
	case e.Type == event.Log:
		return Clean(e.Text), true
	case ended != nil && p.shows(e):
		status := paint(colour, green, "ok  ")
		if e.Error != "" {
			status = paint(colour, red, "FAIL")
		}
		return fmt.Sprintf("%s %7s  %s%s", status, seconds(e.Duration), ended.path(), note(e.Attrs)), true
	}
	return "", false
}

// shows reports whether the end of a span is worth a line that stays. A failed
// run is not: its error is printed by whoever started it, and once.
func (p *Progress) shows(e event.Event) bool {
	switch e.Kind {
	case event.KindRun:
		return e.Error == ""
	case event.KindStep, event.KindPull:
		return true
	case event.KindBranch, event.KindCreate, event.KindExec, event.KindSpawn, event.KindWait:
		return p.mode == Plain
	}
	return p.mode == Plain && (e.Error != "" || e.Duration >= time.Second)
}

// note adds how a command ended, where that is not simply well, and the name of
// what was created.
func note(attrs map[string]any) string {
	if name, _ := attrs["sandbox"].(string); name != "" {
		return " (" + line(name) + ")"
	}
	if timedOut, _ := attrs["timed_out"].(bool); timedOut {
		return " (timed out)"
	}
	if signal, _ := attrs["signal"].(string); signal != "" {
		return " (" + line(signal) + ")"
	}
	if code, ok := attrs["exit_code"].(int); ok && code != 0 {
		return fmt.Sprintf(" (exit %d)", code)
	}
	return ""
}

// redraw shows the tree until Close.
func (p *Progress) redraw() {
	defer close(p.stopped)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			io.WriteString(p.w, p.frame(time.Now()))
		case <-p.stop:
			return
		}
	}
}

// frame returns what brings the terminal up to date.
func (p *Progress) frame(now time.Time) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	columns, rows := p.size()
	above := p.above
	p.above = nil
	return p.screen.update(above, render(p.tree.rows(now), columns, rows), columns)
}

// Close writes what is still to be shown, takes the live tree away and gives
// the cursor back. It may be called twice.
func (p *Progress) Close() {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return
	}
	close(p.stop)
	<-p.stopped
	if p.mode != TTY {
		return
	}
	columns, _ := p.size()
	var last string
	for _, l := range p.above {
		last += l + "\n"
	}
	io.WriteString(p.w, p.screen.close(columns)+last)
}
