package event_test

import (
	"context"
	"errors"
	"testing"

	"github.com/capybara-hq/capyrun/event"
)

func TestSpans(t *testing.T) {
	var got []event.Event
	ctx := event.NewContext(context.Background(), event.Func(func(e event.Event) { got = append(got, e) }))
	outer, run := event.Begin(ctx, event.Event{Kind: event.KindRun, Name: "run"})
	inner, exec := event.Begin(outer, event.Event{Kind: event.KindExec, Name: "exec", Sandbox: "sb"})
	event.Emit(inner, event.Event{Type: event.Output, Text: "x", Stream: "stdout"})
	exec.End(errors.New("failed"), map[string]any{"exit_code": 1})
	run.End(nil, nil)

	if len(got) != 5 {
		t.Fatalf("%d events: %+v", len(got), got)
	}
	for i, want := range []event.Type{event.Start, event.Start, event.Output, event.End, event.End} {
		if got[i].Type != want || got[i].Time.IsZero() {
			t.Errorf("event %d: %+v, want type %s", i, got[i], want)
		}
	}
	if got[0].Parent != 0 || got[1].Parent != got[0].Span || got[2].Span != got[1].Span || got[3].Span != got[1].Span || got[4].Span != got[0].Span {
		t.Errorf("the spans do not nest: %+v", got)
	}
	if got[2].Sandbox != "sb" || got[3].Error != "failed" || got[3].Attrs["exit_code"] != 1 || got[4].Error != "" {
		t.Errorf("%+v", got)
	}
}

func TestNobodyListens(t *testing.T) {
	ctx := context.Background()
	if event.Enabled(ctx) {
		t.Error("enabled without a sink")
	}
	inner, span := event.Begin(ctx, event.Event{Kind: event.KindRun})
	event.Warn(inner, "nobody hears this")
	span.End(nil, nil)
}
