package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/pkg/stdcopy"
	"golang.org/x/sync/errgroup"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/provider"
)

func (b *bench) rows(host *agent.Session) []row {
	const atOnce = 50
	content := strings.Repeat("0123456789abcdef", 64)
	sandboxTrue := func(int) error { return b.exec(b.sb, provider.Command{Shell: "true"}) }
	return []row{
		{
			what: "`sb.exec(\"true\")` against exec create, hijacked start and inspect", target: 1.0 / 20, rounds: b.rounds, block: 10,
			ours:   sandboxTrue,
			theirs: func(int) error { _, err := b.engineExec(b.id, nil, "bash", "-c", "true"); return err },
		},
		{
			what: "the same against the agent run directly on the host", target: 1.5, rounds: 5 * b.rounds, block: 25,
			ours: sandboxTrue,
			theirs: func(int) error {
				_, err := host.Exec(b.ctx, provider.Command{Shell: "true", Dir: "/tmp"})
				return err
			},
		},
		{
			what: fmt.Sprintf("%d execs at once in one sandbox", atOnce), target: 1.0 / 15, rounds: max(3, b.rounds/12),
			ours: func(int) error { return atOnceDo(atOnce, func() error { return sandboxTrue(0) }) },
			theirs: func(int) error {
				return atOnceDo(atOnce, func() error { _, err := b.engineExec(b.id, nil, "bash", "-c", "true"); return err })
			},
		},
		{
			what: "create to the first command's result, against the reference's sequence (five deletes, two volumes, create, start, exec)", target: 0.75, rounds: max(5, b.rounds/4),
			ours:   b.createOurs,
			theirs: b.createReference,
		},
		{
			what: "write a file of 1 KiB against an engine exec of `cat`", target: 1.0 / 20, rounds: b.rounds, block: 10,
			ours: func(int) error {
				return b.sb.WriteFile(b.ctx, "small", strings.NewReader(content), provider.WriteOptions{})
			},
			theirs: func(int) error {
				_, err := b.engineExec(b.id, strings.NewReader(content), "bash", "-c", "cat > /tmp/small")
				return err
			},
		},
		{
			what: "read it against an engine exec of `cat`", target: 1.0 / 20, rounds: b.rounds, block: 10,
			ours: func(int) error {
				f, err := b.sb.ReadFile(b.ctx, "small", provider.ReadOptions{})
				if err == nil && string(f.Data) != content {
					err = errors.New("other content")
				}
				return err
			},
			theirs: func(int) error {
				out, err := b.engineExec(b.id, nil, "cat", "/tmp/small")
				if err == nil && string(out) != content {
					err = errors.New("other content")
				}
				return err
			},
		},
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

// createOurs is a create and a command. The destroy is not compared.
func (b *bench) createOurs(int) error {
	sb, err := b.p.Create(b.ctx, provider.Spec{Image: b.image})
	if err != nil {
		return err
	}
	err = b.exec(sb, provider.Command{Shell: "true"})
	b.later(func() { sb.Destroy(b.ctx) })
	return err
}

// createReference is the sequence of calls of an implementation that drives
// the engine for everything.
func (b *bench) createReference(round int) error {
	name := fmt.Sprintf("cap-bench-reference-%d-%d", os.Getpid(), round)
	ws, skills := name+"-workspace", name+"-skills"
	// What is deleted is missing, as for every sandbox with a new name.
	b.api.ContainerRemove(b.ctx, name, container.RemoveOptions{Force: true})
	b.api.ContainerRemove(b.ctx, name+"-egress", container.RemoveOptions{Force: true})
	b.api.NetworkRemove(b.ctx, name+"-net")
	b.api.VolumeRemove(b.ctx, ws, true)
	b.api.VolumeRemove(b.ctx, skills, true)
	for _, v := range []string{ws, skills} {
		if _, err := b.api.VolumeCreate(b.ctx, volume.CreateOptions{Name: v}); err != nil {
			return err
		}
	}
	pids := int64(1024)
	c, err := b.api.ContainerCreate(b.ctx,
		&container.Config{Image: b.image, Cmd: []string{"sleep", "infinity"}, WorkingDir: "/workspace"},
		&container.HostConfig{
			NetworkMode: network.NetworkNone, CapDrop: []string{"ALL"}, SecurityOpt: []string{"no-new-privileges"}, ReadonlyRootfs: true,
			Binds:     []string{ws + ":/workspace", skills + ":/skills:ro"},
			Tmpfs:     map[string]string{"/tmp": ""},
			Resources: container.Resources{NanoCPUs: 1e9, Memory: 1 << 30, MemorySwap: 1 << 30, PidsLimit: &pids},
		}, nil, nil, name)
	if err != nil {
		return err
	}
	err = b.api.ContainerStart(b.ctx, c.ID, container.StartOptions{})
	if err == nil {
		_, err = b.engineExec(c.ID, nil, "bash", "-c", "true")
	}
	b.later(func() {
		b.api.ContainerRemove(b.ctx, c.ID, container.RemoveOptions{Force: true})
		b.api.VolumeRemove(b.ctx, ws, true)
		b.api.VolumeRemove(b.ctx, skills, true)
	})
	return err
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
