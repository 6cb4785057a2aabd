package agent_test

import (
	"context"
	"testing"

	"github.com/capybara-hq/capyrun/provider"
)

func TestExecResult(t *testing.T) {
	_, s := newSession(t)
	r, err := s.Exec(context.Background(), provider.Command{Shell: "echo out; echo err >&2; exit 3"})
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" || r.ExitCode != 3 {
		t.Errorf("got %+v", r)
	}
}

func BenchmarkExec(b *testing.B) {
	_, s := newSession(b)
	ctx := context.Background()
	for b.Loop() {
		if _, err := s.Exec(ctx, provider.Command{Args: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPing(b *testing.B) {
	_, s := newSession(b)
	ctx := context.Background()
	for b.Loop() {
		if err := s.Ping(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
