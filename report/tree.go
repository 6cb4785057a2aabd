package report

import (
	"slices"
	"strings"
	"time"

	"github.com/capybara-hq/capyrun/event"
)

// tree is what runs now, made from events. It is pure: the same events give the
// same tree.
type tree struct {
	nodes map[event.SpanID]*node
	roots []*node
}

type node struct {
	start    event.Event
	parent   *node
	children []*node
	progress string // the last Progress text
	output   tail
}

// apply takes an event in and returns the span that it ended, if it did.
func (t *tree) apply(e event.Event) *node {
	if t.nodes == nil {
		t.nodes = map[event.SpanID]*node{}
	}
	switch n := t.nodes[e.Span]; {
	case e.Type == event.Start:
		n := &node{start: e, parent: t.nodes[e.Parent]}
		t.nodes[e.Span] = n
		if n.parent == nil {
			t.roots = append(t.roots, n)
		} else {
			n.parent.children = append(n.parent.children, n)
		}
	case n == nil:
	case e.Type == event.Output:
		n.output.add(e.Stream, e.Text)
	case e.Type == event.Progress:
		n.progress = line(e.Text)
	case e.Type == event.End:
		delete(t.nodes, e.Span)
		siblings := &t.roots
		if n.parent != nil {
			siblings = &n.parent.children
		}
		*siblings = slices.DeleteFunc(*siblings, func(s *node) bool { return s == n })
		return n
	}
	return nil
}

// title is what the span does, in a few words.
func (n *node) title() string {
	name := line(n.start.Name)
	switch n.start.Kind {
	case event.KindExec:
		return "$ " + name
	case event.KindSpawn:
		return "$ " + name + " &"
	}
	return name
}

// path is the title after those of the steps and branches around the span.
func (n *node) path() string {
	parts := []string{n.title()}
	for p := n.parent; p != nil; p = p.parent {
		if p.start.Kind == event.KindStep || p.start.Kind == event.KindBranch {
			parts = append(parts, p.title())
		}
	}
	slices.Reverse(parts)
	return strings.Join(parts, " / ")
}

// A row is one line of the live tree.
type row struct {
	depth int
	text  string
	time  string
	dim   bool // output, not a span
}

// rows lists the tree from the top down.
func (t *tree) rows(now time.Time) []row {
	var rows []row
	var visit func(n *node, depth int)
	visit = func(n *node, depth int) {
		text := n.title()
		if n.progress != "" {
			text += ": " + n.progress
		}
		rows = append(rows, row{depth: depth, text: text, time: elapsed(now.Sub(n.start.Time))})
		if last := n.output.last(); last != "" && len(n.children) == 0 {
			rows = append(rows, row{depth: depth + 1, text: last, dim: true})
		}
		for _, c := range n.children {
			visit(c, depth+1)
		}
	}
	for _, n := range t.roots {
		visit(n, 0)
	}
	return rows
}

// elapsed is a running time: coarser than that of a finished span, so that the
// display is not redrawn for digits that nobody can read.
func elapsed(d time.Duration) string {
	if d < 0 {
		d = 0
	}
	if d < time.Minute {
		return d.Truncate(100 * time.Millisecond).String()
	}
	return d.Truncate(time.Second).String()
}

// tail keeps the last line of a command's output.
type tail struct {
	done string // the last complete line that is not blank
	open [2]string
}

// maxOpen bounds what is kept of a line that does not end.
const maxOpen = 4 << 10

func (t *tail) add(stream, text string) {
	open := &t.open[0]
	if stream == "stderr" {
		open = &t.open[1]
	}
	*open += text
	// A carriage return begins the line again, as progress bars do.
	if i := strings.LastIndexAny(*open, "\r\n"); i >= 0 {
		lines := strings.FieldsFunc((*open)[:i], func(r rune) bool { return r == '\r' || r == '\n' })
		for _, l := range slices.Backward(lines) {
			if l = line(l); l != "" {
				t.done = l
				break
			}
		}
		*open = (*open)[i+1:]
	}
	if len(*open) > maxOpen {
		*open = (*open)[len(*open)-maxOpen:]
	}
}

func (t *tail) last() string {
	for _, open := range t.open {
		if l := line(open); l != "" {
			return l
		}
	}
	return t.done
}
