package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// typist is a command's Stdin and OnOutput: it answers what the command prints.
type typist struct {
	io.Reader
	w       *io.PipeWriter
	answers []answer
	out     bytes.Buffer // with a carriage return before every line feed
	seen    int
}

// answer is what is done when a text has come, after what the last one was for.
type answer struct {
	text string
	do   func(w io.WriteCloser)
}

func types(s string) func(io.WriteCloser) {
	return func(w io.WriteCloser) { io.WriteString(w, s) }
}

func ends(w io.WriteCloser) { w.Close() }

func newTypist(answers ...answer) *typist {
	r, w := io.Pipe()
	return &typist{Reader: r, w: w, answers: answers}
}

func (y *typist) onOutput(_ provider.Stream, data []byte) {
	y.out.Write(data)
	for len(y.answers) > 0 {
		next := y.answers[0]
		at := strings.Index(y.out.String()[y.seen:], next.text)
		if at < 0 {
			return
		}
		y.seen += at + len(next.text)
		y.answers = y.answers[1:]
		go next.do(y.w) // what it types may be read only after this has returned
	}
}

func testTerminal(t *testing.T, h Harness) {
	ctx := t.Context()
	p := h.New(t)
	sb := create(t, p, provider.Spec{Image: h.Image})
	tty := func() *provider.Terminal { return &provider.Terminal{} }
	converse := func(t *testing.T, sb provider.Sandbox, cmd provider.Command, answers ...answer) *provider.Result {
		t.Helper()
		y := newTypist(answers...)
		defer y.w.Close()
		cmd.Stdin, cmd.OnOutput, cmd.Timeout = y, y.onOutput, patience
		if cmd.Terminal == nil {
			cmd.Terminal = tty()
		}
		r := exec(t, sb, cmd)
		if len(y.answers) > 0 {
			t.Errorf("%s: %q did not come in %s", cmd.String(), y.answers[0].text, clip(y.out.String()))
		}
		return r
	}

	t.Run("all streams", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "test -t 0 && test -t 1 && test -t 2 && echo yes; echo err >&2; : > /dev/tty || echo no controlling terminal; exit 3", Terminal: tty()})
		if string(r.Stdout) != "yes\r\nerr\r\n" || len(r.Stderr) > 0 || r.ExitCode != 3 {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
	})

	t.Run("size", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "stty size", Terminal: tty()})
		wantString(t, "default", r.Stdout, "24 80\r\n")
		resize := make(chan provider.WindowSize)
		defer close(resize)
		r = converse(t, sb, provider.Command{
			Shell:    "trap 'stty size; exit 7' WINCH; stty size; while :; do sleep 0.01; done",
			Terminal: &provider.Terminal{Size: provider.WindowSize{Rows: 30, Columns: 100}, Resize: resize},
		}, answer{"30 100\r\n", func(w io.WriteCloser) {
			w.Close() // the end of the input does not end the resizing
			resize <- provider.WindowSize{Rows: 31, Columns: 101}
		}})
		if string(r.Stdout) != "30 100\r\n31 101\r\n" || r.ExitCode != 7 {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
	})

	t.Run("interrupt", func(t *testing.T) {
		r := converse(t, sb, provider.Command{Shell: "echo ready; sleep 4761; echo after"}, answer{"ready", types("\x03")})
		if r.Signal != "SIGINT" && r.ExitCode != 130 || strings.Contains(string(r.Stdout), "after") {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
		r = converse(t, sb, provider.Command{Shell: "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.01; done"}, answer{"ready", types("\x03")})
		if r.ExitCode != 9 || !strings.HasSuffix(string(r.Stdout), "caught\r\n") {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
	})

	t.Run("end of input", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "cat; echo end", Terminal: tty(), Timeout: patience})
		if !r.OK() || string(r.Stdout) != "end\r\n" {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
		r = converse(t, sb, provider.Command{Shell: "stty -echo; echo ready; cat; echo end"},
			answer{"ready", types("line\n")}, answer{"line", ends})
		if !r.OK() || string(r.Stdout) != "ready\r\nline\r\nend\r\n" {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
	})

	t.Run("exact when raw", func(t *testing.T) {
		const size = 1 << 20
		data := pattern(size)
		r := converse(t, sb, provider.Command{Shell: fmt.Sprintf("stty raw -echo; printf ready; head -c %d", size), MaxOutput: 2 * size},
			answer{"ready", types(string(data))})
		if !r.OK() || !bytes.Equal(r.Stdout, append([]byte("ready"), data...)) {
			t.Errorf("%d bytes, status %d, timed out %v", len(r.Stdout), r.ExitCode, r.TimedOut)
		}
	})

	t.Run("cap", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "printf ééé", MaxOutput: 3, Terminal: tty()})
		if string(r.Stdout) != "é" || !r.Truncated {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
	})

	t.Run("refused", func(t *testing.T) {
		_, err := sb.Start(ctx, provider.Command{Shell: "true", Terminal: tty()})
		wantInvalid(t, err, "terminal")
		_, err = sb.Exec(ctx, provider.Command{Args: []string{"no-such-program"}, Terminal: tty()})
		wantIs(t, err, provider.ErrNotStarted)
	})

	t.Run("cancel", func(t *testing.T) {
		cause := errors.New("never mind")
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		r, err := sb.Exec(ctx, provider.Command{Shell: "(setsid sleep 4762 &); sleep 4762 & echo partial; sleep 4762", Terminal: tty(),
			OnOutput: func(provider.Stream, []byte) { cancel(cause) }})
		wantIs(t, err, cause)
		if r == nil || string(r.Stdout) != "partial\r\n" {
			t.Errorf("partial result: %+v", r)
		}
		if n := alive(t, sb, "sleep 4762"); n != 0 {
			t.Errorf("%d are left", n)
		}
	})

	t.Run("timeout", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "trap '' INT HUP; echo partial; sleep 4763; sleep 4763", Terminal: tty(), Timeout: 200 * time.Millisecond})
		if !r.TimedOut || string(r.Stdout) != "partial\r\n" {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
		if n := alive(t, sb, "sleep 4763"); n != 0 {
			t.Errorf("%d are left", n)
		}
	})

	t.Run("hang-up", func(t *testing.T) {
		r := exec(t, sb, provider.Command{Shell: "sleep 4764 & (trap '' HUP; : > /tmp/deaf; exec sleep 4765) & while [ ! -e /tmp/deaf ]; do sleep 0.01; done; echo end", Terminal: tty(), Timeout: patience})
		if !r.OK() || string(r.Stdout) != "end\r\n" {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
		wait(t, "the end of what heeds the hang-up", func() bool { return alive(t, sb, "sleep 4764") == 0 })
		if n := alive(t, sb, "sleep 4765"); n != 1 {
			t.Errorf("%d are left of what does not, want 1", n)
		}
		if _, err := sb.KillAll(ctx); err != nil {
			t.Error(err)
		}
	})

	t.Run("job control", func(t *testing.T) {
		sb := create(t, p, provider.Spec{Image: h.BashImage})
		r := converse(t, sb, provider.Command{Args: []string{"bash", "--norc", "-i"}, Env: map[string]string{"PS1": "prompt-", "TERM": "dumb"}},
			answer{"prompt-", types("sleep 4766\n")},
			answer{"sleep 4766", func(w io.WriteCloser) {
				// Until its group (field 5) is the terminal's foreground one (field 8).
				for run(t, sb, `for d in /proc/[0-9]*; do
					case "$(tr '\0' ' ' <$d/cmdline)" in "sleep 47"66*) set -- $(cut -d' ' -f5,8 $d/stat); [ "$1" != "$2" ] || echo yes ;; esac
				done 2>/dev/null`) != "yes\n" {
				}
				io.WriteString(w, "\x1a")
			}},
			answer{"Stopped", types("jobs -l; kill %1; echo $((6*7))\n")},
			answer{"\n42\r\n", ends})
		if strings.Contains(string(r.Stdout), "no job control") || r.TimedOut {
			t.Errorf("%+v (stdout %q)", r, r.Stdout)
		}
	})
}
