package starlib_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/starlib"
)

// outline is the tree of spans, with what they contain.
func outline(events []event.Event) string {
	var b strings.Builder
	depth := map[event.SpanID]int{}
	for _, e := range events {
		switch e.Type {
		case event.Start:
			depth[e.Span] = depth[e.Parent] + 1
			fmt.Fprintf(&b, "%s%s %s", strings.Repeat("  ", depth[e.Span]-1), e.Kind, e.Name)
			if e.Sandbox != "" {
				fmt.Fprintf(&b, " (%s)", e.Sandbox)
			}
			b.WriteByte('\n')
		case event.End:
			if e.Error != "" || len(e.Attrs) > 0 {
				fmt.Fprintf(&b, "%send %s %s %v\n", strings.Repeat("  ", depth[e.Span]-1), e.Kind, e.Error, e.Attrs)
			}
		default:
			fmt.Fprintf(&b, "%s%s %s %q\n", strings.Repeat("  ", depth[e.Span]), e.Type, e.Stream, e.Text)
		}
	}
	return b.String()
}

func TestEvents(t *testing.T) {
	var mu sync.Mutex
	var events []event.Event
	sink := event.Func(func(e event.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	})
	fake := starlibtestNew(t)
	_, err := starlib.New(fake, starlib.Options{Events: sink}).RunSource(t.Context(), "main.star", []byte(`
def main():
    sb = sandbox.create(name = "a")
    print("one\ntwo")
    def build():
        sb.write("f", "1\n2")
        sb.exec("cat f")
        return flow.map(lambda x: sb.exec("exit 3", check = False), ["x"])
    flow.step("build", build)
    flow.defer(sb.remove, "f")
    sb.exec("""
        false
        true""")
`), nil)
	wantKind(t, err, starlib.KindCommand)
	want := `run main.star
  create create default image (a)
  end create  map[sandbox:a]
  print  "one"
  print  "two"
  step build
    file write f (a)
    exec cat f (a)
      output stdout "1\n"
      output stdout "2"
    end exec  map[exit_code:0]
    branch 1: "x"
      exec exit 3 (a)
      end exec  map[exit_code:3]
  exec false ... (a)
    output stderr "sh: false: not found\n"
  end exec sandbox a: exit code 127: false ... map[exit_code:127]
  cleanup cleanup
    progress  "running deferred calls (up to 1m0s)"
    file remove f (a)
    progress  "cleaning up 1 sandbox"
    sandbox destroy (a)
end run main.star:11:12: sandbox.exec: sandbox a: exit code 127: false ... map[]
`
	want = strings.ReplaceAll(want, "create default image (a)", "create default image (a)")
	if d := cmp.Diff(want, outline(events)); d != "" {
		t.Error(d)
	}
}
