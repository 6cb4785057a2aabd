//go:build linux

package agent_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(pid1Role) != "" {
		becomePID1()
	}
	agent.Main() // this binary, run again, is the agent
	goleak.VerifyTestMain(m)
}

// sandbox is an agent that runs as a process of its own, with directories of
// the host in the place of a sandbox's.
type sandbox struct {
	t         testing.TB
	cmd       *exec.Cmd
	socket    string
	workspace string
	tmp       string
	stdin     io.WriteCloser
	stdout    io.Reader
	exited    chan struct{}
}

var sandboxes atomic.Int64

// newSandbox starts an agent. It ends with the test.
func newSandbox(t testing.TB, args ...string) *sandbox {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	b := &sandbox{
		t: t, workspace: filepath.Join(dir, "workspace"), tmp: filepath.Join(dir, "tmp"),
		socket: fmt.Sprintf("@capyrun-test-%d-%d", os.Getpid(), sandboxes.Add(1)),
		exited: make(chan struct{}),
	}
	for _, d := range []string{b.workspace, b.tmp} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b.cmd = exec.Command(self, append([]string{
		"agent", "init", "--socket", b.socket, "--client-uid", fmt.Sprint(os.Getuid()),
		"--place", "/workspace=" + b.workspace, "--place", "/tmp=" + b.tmp,
	}, args...)...)
	b.cmd.Env = append(os.Environ(), "HOME=/workspace")
	b.cmd.Stderr = os.Stderr
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if b.stdout, err = b.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		b.cmd.Wait()
		close(b.exited)
	}()
	t.Cleanup(func() {
		b.cmd.Process.Signal(os.Interrupt)
		select {
		case <-b.exited:
		case <-time.After(20 * time.Second):
			t.Error("the agent does not end")
			b.cmd.Process.Kill()
		}
	})
	return b
}

// stream is the session over the agent's standard input and output.
func (b *sandbox) stream() io.ReadWriteCloser { return &pair{b.stdout, b.stdin} }

type pair struct {
	io.Reader
	io.WriteCloser
}

func (p *pair) Close() error {
	if c, ok := p.Reader.(io.Closer); ok {
		c.Close()
	}
	return p.WriteCloser.Close()
}

// connect opens a stream by "agent connect".
func (b *sandbox) connect(context.Context) (io.ReadWriteCloser, error) {
	return b.command("agent", "connect", "--socket", b.socket, "--first-pid", fmt.Sprint(b.cmd.Process.Pid))
}

// command is the stream over a process of this binary.
func (b *sandbox) command(args ...string) (io.ReadWriteCloser, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &relay{pair{out, in}, cmd}, nil
}

type relay struct {
	pair
	cmd *exec.Cmd
}

func (r *relay) Close() error {
	r.pair.Close()
	return r.cmd.Wait()
}

// session opens a session to the agent, which ends with the test.
func (b *sandbox) session(cfg agent.SessionConfig) *agent.Session {
	b.t.Helper()
	if cfg.Sandbox == "" {
		cfg.Sandbox = "box"
	}
	if cfg.Dial == nil {
		cfg.Dial = b.connect
	}
	s := agent.NewSession(cfg)
	b.t.Cleanup(func() { s.Close() })
	return s
}

// newSession is a session to a new agent over its standard input and output.
func newSession(t testing.TB, args ...string) (*sandbox, *agent.Session) {
	t.Helper()
	b := newSandbox(t, args...)
	s := b.session(agent.SessionConfig{})
	if err := s.Adopt(context.Background(), b.stream()); err != nil {
		t.Fatal(err)
	}
	return b, s
}

// read returns a file of the sandbox's workspace.
func (b *sandbox) read(name string) string {
	b.t.Helper()
	data, err := os.ReadFile(filepath.Join(b.workspace, name))
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

func trim(b []byte) string { return strings.TrimSpace(string(b)) }
