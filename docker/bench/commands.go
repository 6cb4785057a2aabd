package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sync/errgroup"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

func (b *bench) commandRows() []row {
	const atOnce = 50
	sandboxTrue := func(int) error { return b.exec(b.sb, provider.Command{Shell: "true"}) }
	engineTrue := func(int) error { _, err := b.engineExec(b.id, nil, "bash", "-c", "true"); return err }
	return []row{
		b.compare("`sb.exec(\"true\")` against exec create, hijacked start and inspect", pair{
			target: 1.0 / 20, rounds: b.rounds, block: 10, ours: sandboxTrue, theirs: engineTrue,
		}),
		{"the same against the agent run directly on the host", func() (string, error) {
			host, stop, err := hostAgent(b.ctx, b.binary)
			if err != nil {
				return "", err
			}
			defer stop()
			p := pair{target: 1.5, rounds: 5 * b.rounds, block: 25, ours: sandboxTrue, theirs: func(int) error {
				_, err := host.Exec(b.ctx, provider.Command{Shell: "true", Dir: "/tmp"})
				return err
			}}
			return b.compare("", p).measure()
		}},
		b.compare(fmt.Sprintf("%d execs at once in one sandbox", atOnce), pair{
			target: 1.0 / 15, rounds: max(3, b.rounds/12),
			ours:   func(int) error { return atOnceDo(atOnce, func() error { return sandboxTrue(0) }) },
			theirs: func(int) error { return atOnceDo(atOnce, func() error { return engineTrue(0) }) },
		}),
	}
}

func atOnceDo(n int, f func() error) error {
	var g errgroup.Group
	for range n {
		g.Go(f)
	}
	return g.Wait()
}

func (b *bench) exec(sb provider.Sandbox, cmd provider.Command) error {
	r, err := sb.Exec(b.ctx, cmd)
	if err == nil && !r.OK() {
		err = fmt.Errorf("%s: status %d", cmd.String(), r.ExitCode)
	}
	return err
}

// engineExec is how a command runs by the engine's API alone.
func (b *bench) engineExec(id string, stdin io.Reader, args ...string) ([]byte, error) {
	ex, err := b.api.ContainerExecCreate(b.ctx, id, container.ExecOptions{Cmd: args, AttachStdin: stdin != nil, AttachStdout: true, AttachStderr: true})
	if err != nil {
		return nil, err
	}
	conn, err := b.api.ContainerExecAttach(b.ctx, ex.ID, container.ExecAttachOptions{})
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if stdin != nil {
		if _, err := io.Copy(conn.Conn, stdin); err != nil {
			return nil, err
		}
		if err := conn.CloseWrite(); err != nil {
			return nil, err
		}
	}
	var stdout, stderr bytes.Buffer
	if _, err := stdcopy.StdCopy(&stdout, &stderr, conn.Reader); err != nil {
		return nil, err
	}
	state, err := b.api.ContainerExecInspect(b.ctx, ex.ID)
	if err == nil && state.ExitCode != 0 {
		err = fmt.Errorf("%v: status %d: %s", args, state.ExitCode, stderr.String())
	}
	return stdout.Bytes(), err
}

// hostAgent runs the agent on this machine, without a container: the floor.
func hostAgent(ctx context.Context, binary string) (*agent.Session, func(), error) {
	args := agent.InitArgs(agent.InitOptions{})
	cmd := exec.Command(binary, args[1:]...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	s := agent.NewSession(agent.SessionConfig{Sandbox: "host", Dial: func(context.Context) (io.ReadWriteCloser, error) {
		return nil, errors.New("the agent on the host has ended")
	}})
	stop := func() {
		s.Close()
		cmd.Process.Kill()
		cmd.Wait()
	}
	if err := s.Adopt(ctx, pipe{out, in}); err != nil {
		stop()
		return nil, nil, err
	}
	return s, stop, nil
}

type pipe struct {
	io.Reader
	io.WriteCloser
}

// bareShell times what no way of running a command in a shell can go below.
func (b *bench) bareShell() (time.Duration, error) {
	all, err := b.sample(5*b.rounds, func(int) error {
		pid, err := syscall.ForkExec("/bin/bash", []string{"bash", "-c", "true"}, &syscall.ProcAttr{Env: []string{"LANG=C.UTF-8"}})
		if err == nil {
			_, err = syscall.Wait4(pid, nil, 0, nil)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return median(all), nil
}
