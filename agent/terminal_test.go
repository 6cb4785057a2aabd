//go:build linux

package agent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

func terminal(rows, columns uint16) *provider.Terminal {
	return &provider.Terminal{Size: provider.WindowSize{Rows: rows, Columns: columns}}
}

func TestTerminalEnd(t *testing.T) {
	_, s := newSession(t)
	for _, tt := range []struct {
		name, line, typed string
		want              string // the end, with a carriage return before every line feed
	}{
		{"nothing typed", "echo ready; cat; echo end", "", "ready\nend\n"},
		{"a line", "stty -echo; echo ready; cat; echo end", "a\n", "ready\na\nend\n"},
		{"a part of a line", "stty -echo; echo ready; cat; echo; echo end", "ab", "ready\nab\nend\n"},
		{"one end for the first reader", "stty -echo; echo ready; cat; timeout --foreground 0.2 cat; echo end $?", "a\n", "ready\na\nend 124\n"},
		{"raw", "stty raw -echo; echo ready; timeout --foreground 0.5 cat | od -An -c", "a\x04", "ready\n   a 004\n"},
		{"a line editor", "echo ready; bash --norc --noprofile -i 2>&1", "echo $((6*7))x\n", "exit\n"},
		{"a line editor that gets nothing", "echo ready; bash --norc --noprofile -i 2>&1", "", "exit\n"},
		{"unread", "stty -echo; echo ready; echo end", "a\nb\n", "end\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stdin, w := io.Pipe()
			out := ""
			r := mustExec(t, s, provider.Command{
				Shell: tt.line, Stdin: stdin, Terminal: terminal(0, 0), Timeout: 20 * time.Second,
				OnOutput: func(_ provider.Stream, data []byte) {
					if out += strings.ReplaceAll(string(data), "\r", ""); w != nil && strings.Contains(out, "ready\n") {
						typing := w
						w = nil
						go func() {
							io.WriteString(typing, tt.typed)
							typing.Close()
						}()
					}
				},
			})
			if got := strings.ReplaceAll(string(r.Stdout), "\r", ""); !strings.HasSuffix(got, tt.want) || r.TimedOut {
				t.Errorf("got %q, want %q; %+v", got, tt.want, r)
			}
		})
	}
	// Without an input the end is typed at once.
	if r := mustExec(t, s, provider.Command{Shell: "cat; echo end", Terminal: terminal(0, 0), Timeout: 20 * time.Second}); r.TimedOut {
		t.Errorf("%+v", r)
	}
}

// TestTerminalOutlived: what a command leaves behind on its terminal holds
// neither the command nor the terminal.
func TestTerminalOutlived(t *testing.T) {
	_, s := newSession(t)
	word := fmt.Sprint("outlived", os.Getpid(), time.Now().UnixNano())
	for _, line := range []string{
		"(trap '' HUP; exec sh -c 'while :; do sleep 0.05; echo x; done; : WORD') & echo end",
		"setsid sh -c 'while :; do sleep 0.01; echo x; done; : WORD' & echo end",
	} {
		start := time.Now()
		r := mustExec(t, s, provider.Command{Shell: strings.ReplaceAll(line, "WORD", word), Terminal: terminal(24, 80), MaxOutput: 1 << 20})
		if !strings.Contains(string(r.Stdout), "end\r\n") || time.Since(start) > 15*time.Second {
			t.Errorf("%q after %v: %+v", r.Stdout, time.Since(start), r)
		}
	}
	if _, err := s.KillAll(ctx); err != nil {
		t.Error(err)
	}
}

// TestTerminalReopened: a command may close its terminal and open it again.
func TestTerminalReopened(t *testing.T) {
	_, s := newSession(t)
	r := mustExec(t, s, provider.Command{Shell: "exec </dev/null >/dev/null 2>&1; sleep 0.1; echo again >/dev/tty", Terminal: terminal(24, 80)})
	if string(r.Stdout) != "again\r\n" {
		t.Errorf("got %+v", r)
	}
}

// TestTerminalFlood: the last bytes before the end of a command are not lost,
// also where its reader is slow.
func TestTerminalFlood(t *testing.T) {
	_, s := newSession(t)
	for i := range 8 {
		n := 0
		r := mustExec(t, s, provider.Command{
			Shell: "stty raw; head -c 60000 /dev/zero", Terminal: terminal(24, 80), MaxOutput: 1,
			OnOutput: func(_ provider.Stream, data []byte) {
				if n += len(data); i%2 == 0 {
					time.Sleep(20 * time.Millisecond)
				}
			},
		})
		if n != 60000 || !r.OK() {
			t.Errorf("%d bytes: %+v", n, r)
		}
	}
}

// TestTerminalsLeaveNothing: descriptors of ended terminals are given back.
func TestTerminalsLeaveNothing(t *testing.T) {
	b, s := newSession(t)
	count := func() int {
		list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", b.cmd.Process.Pid))
		if err != nil {
			if os.Getuid() != 0 {
				t.Skip("the agent's descriptors are root's to see")
			}
			t.Fatal(err)
		}
		return len(list)
	}
	run := func(line string, cancelled bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		cmd := provider.Command{Shell: line, Terminal: terminal(24, 80)}
		if cancelled {
			cmd.OnOutput = func(provider.Stream, []byte) { cancel() }
		}
		if _, err := s.Exec(ctx, cmd); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	run("true", false)
	before := count()
	for range 10 {
		run("true", false)
		run("echo x; sleep 1000", true)
		run("no-such-program; (trap '' HUP; sleep 0.2) &", false)
	}
	waitFor(t, func() bool { return count() <= before })
}

func TestTerminalVanishedClient(t *testing.T) {
	b, watcher := newSession(t)
	s := b.session(agent.SessionConfig{Dial: b.dial})
	done := make(chan error, 1)
	r, w := io.Pipe()
	defer w.Close()
	go func() {
		_, err := s.Exec(ctx, provider.Command{Args: []string{"sleep", "1000"}, Terminal: terminal(24, 80), Stdin: r})
		done <- err
	}()
	waitFor(t, func() bool {
		list, err := watcher.Processes(ctx)
		return err == nil && len(list) == 1
	})
	s.Close()
	if err := <-done; !errors.Is(err, provider.ErrSessionLost) {
		t.Errorf("got %v", err)
	}
	waitFor(t, func() bool {
		list, err := watcher.Processes(ctx)
		return err == nil && len(list) == 0
	})
}
