//go:build linux

package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

// everything calls each operation once. Nothing may hang, whatever the agent
// says.
func everything(t testing.TB, s *agent.Session) []error {
	defer agent.SetPatience(time.Second)()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var errs []error
	add := func(err error) { errs = append(errs, err) }
	_, err := s.Exec(ctx, provider.Command{Shell: "x", MaxOutput: 1000})
	add(err)
	_, err = s.Exec(ctx, provider.Command{Shell: "x", Stdin: strings.NewReader("input"), MaxOutput: 10, OnOutput: func(provider.Stream, []byte) {}})
	add(err)
	p, err := s.Start(ctx, provider.Command{Shell: "x"})
	add(err)
	if err == nil {
		_, err = p.Wait(ctx)
		add(err)
		_, err = p.Output(ctx)
		add(err)
	}
	_, err = s.Processes(ctx)
	add(err)
	_, err = s.KillAll(ctx)
	add(err)
	_, err = s.ReadFile(ctx, "x", provider.ReadOptions{Max: 1000})
	add(err)
	if f, err := s.OpenFile(ctx, "x", provider.ReadOptions{}); err == nil {
		_, err = io.Copy(io.Discard, io.LimitReader(f, 1<<20))
		f.Close()
		add(err)
	}
	add(s.WriteFile(ctx, "x", strings.NewReader("data"), provider.WriteOptions{}))
	_, err = s.Stat(ctx, "x")
	add(err)
	_, err = s.ReadDir(ctx, "x", true)
	add(err)
	_, err = s.Glob(ctx, "*")
	add(err)
	add(s.Download(ctx, "x", io.Discard))
	_, err = s.Stats(ctx)
	add(err)
	if c, err := s.Dial(ctx, "tcp", "localhost:1"); err == nil {
		c.SetDeadline(time.Now().Add(100 * time.Millisecond))
		io.Copy(io.Discard, io.LimitReader(c, 1<<20))
		c.Close()
	}
	if ctx.Err() != nil {
		t.Errorf("an operation hung: %v", errs)
	}
	return errs
}

// serveFrames is an agent that answers every operation with the same bytes.
func serveFrames(conn net.Conn, answer []byte) {
	defer conn.Close()
	wire.WriteHello(conn, wire.Hello{Version: 1})
	if _, err := wire.ReadHello(conn); err != nil {
		return
	}
	m, err := wire.NewMux(conn, false)
	if err != nil {
		return
	}
	defer m.Close()
	for {
		st, err := m.AcceptStream()
		if err != nil {
			return
		}
		go func() {
			defer st.Close()
			r := wire.NewReader(st)
			for {
				typ, _, err := r.Next()
				if err != nil {
					return
				}
				if typ == wire.TypeRequest {
					if _, err := st.Write(answer); err != nil {
						return
					}
					if !complete(answer) {
						return // the client would rightly wait for the rest
					}
				}
			}
		}()
	}
}

// complete reports whether an answer has a final frame.
func complete(answer []byte) bool {
	r := wire.NewReader(bytes.NewReader(answer))
	for {
		t, _, err := r.Next()
		if err != nil {
			return false
		}
		if t == wire.TypeFinal {
			_, err := r.Payload()
			return err == nil
		}
	}
}

func frames(parts ...any) []byte {
	var b bytes.Buffer
	w := wire.NewWriter(&b)
	for i := 0; i < len(parts); i += 2 {
		switch body := parts[i+1].(type) {
		case string:
			w.Frame(parts[i].(wire.Type), []byte(body))
		default:
			raw, err := json.Marshal(body)
			if err != nil {
				panic(err)
			}
			w.Frame(parts[i].(wire.Type), raw)
		}
	}
	w.Flush()
	return b.Bytes()
}

// hostileSession is a session to whatever serve makes of a connection.
func hostileSession(t testing.TB, serve func(net.Conn)) *agent.Session {
	done := make(chan struct{}, 1000)
	started := 0
	s := agent.NewSession(agent.SessionConfig{Sandbox: "box", Dial: func(context.Context) (io.ReadWriteCloser, error) {
		a, b := net.Pipe()
		started++
		go func() {
			serve(b)
			done <- struct{}{}
		}()
		return a, nil
	}})
	t.Cleanup(func() {
		s.Close()
		for range started {
			<-done
		}
	})
	return s
}

func TestHostileAnswers(t *testing.T) {
	for name, answer := range map[string][]byte{
		"nothing":             frames(wire.TypeFinal, "{}"),
		"no JSON":             frames(wire.TypeFinal, "}"),
		"cut":                 {19, 0, 0, 0, 9, '{'},
		"huge frame":          {19, 0xff, 0xff, 0xff, 0xff},
		"unknown frames":      frames(wire.Type(99), "x", wire.TypeFinal, "{}"),
		"too much output":     frames(wire.TypeStdout, strings.Repeat("x", 60000), wire.TypeFinal, map[string]any{"result": map[string]any{}}),
		"too much data":       frames(wire.TypeData, strings.Repeat("x", 60000), wire.TypeFinal, "{}"),
		"bad items":           frames(wire.TypeItems, `{"a":1}`, wire.TypeFinal, "{}"),
		"claims":              frames(wire.TypeFinal, `{"error":{"kind":"session lost","message":"\u001b[2J"}}`),
		"strange process":     frames(wire.TypeFinal, `{"process":{"id":"../../x\n","pid":-1}}`),
		"strange result":      frames(wire.TypeFinal, `{"result":{"exit_code":-99,"signal":"\u001b[31m","duration_ns":-5},"count":-7,"size":-1,"file":{"kind":"x","mode":4294967295}}`),
		"deep":                frames(wire.TypeFinal, strings.Repeat("[", 100000)),
		"only an end":         frames(wire.TypeEnd, ""),
		"two final frames":    frames(wire.TypeFinal, "{}", wire.TypeFinal, "{}"),
		"request to a client": frames(wire.TypeRequest, "{}", wire.TypeFinal, "{}"),
	} {
		t.Run(name, func(t *testing.T) {
			s := hostileSession(t, func(c net.Conn) { serveFrames(c, answer) })
			for _, err := range everything(t, s) {
				if err != nil && strings.ContainsAny(err.Error(), "\x1b\x07") {
					t.Errorf("control characters: %q", err)
				}
				var lost *provider.Error
				if name == "claims" && errors.As(err, &lost) && lost.Kind == provider.ErrSessionLost {
					t.Errorf("a claim was believed: %v", err)
				}
			}
		})
	}
}

func TestNoAgent(t *testing.T) {
	for name, says := range map[string]string{
		"closes":      "",
		"runc's text": "OCI runtime exec failed: exec failed: unable to start container process: no such file",
	} {
		s := hostileSession(t, func(c net.Conn) {
			go io.Copy(io.Discard, c)
			io.WriteString(c, says)
			c.Close()
		})
		err := s.Ping(ctx)
		if !errors.Is(err, provider.ErrSessionLost) || !strings.Contains(err.Error(), "sandbox box: ping: session lost: open a session") {
			t.Errorf("%s: %v", name, err)
		}
		if says != "" && !strings.Contains(err.Error(), "OCI runtime") {
			t.Errorf("%s: the error does not show it: %v", name, err)
		}
	}
	s := hostileSession(t, func(c net.Conn) { io.Copy(io.Discard, c) }) // says nothing
	short, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
	defer cancel()
	if err := s.Ping(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a silent agent: %v", err)
	}
}

// FuzzHostileAgent gives a client random bytes in the place of an agent's
// answers: at the level of frames, of the multiplexer, and of the greeting.
func FuzzHostileAgent(f *testing.F) {
	f.Add(byte(0), frames(wire.TypeStdout, "out", wire.TypeFinal, map[string]any{"result": map[string]any{"exit_code": 3}}))
	f.Add(byte(0), frames(wire.TypeItems, []wire.File{{Path: []byte("x")}}, wire.TypeFinal, "{}"))
	f.Add(byte(0), frames(wire.TypeData, "x", wire.TypeFinal, `{"size":1}`))
	f.Add(byte(1), []byte{0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 19, 0, 0})
	f.Add(byte(2), []byte("capyrun\x00\x00\x00\x00\x02{}"))
	f.Fuzz(func(t *testing.T, level byte, data []byte) {
		s := hostileSession(t, func(c net.Conn) {
			if level%3 == 0 {
				serveFrames(c, data)
				return
			}
			go io.Copy(io.Discard, c)
			if level%3 == 1 {
				wire.WriteHello(c, wire.Hello{Version: 1})
			}
			c.Write(data)
			c.Close()
		})
		everything(t, s)
	})
}
