package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/provider/pool"
)

func (b *bench) createRows() []row {
	return []row{
		b.compare("create to the first command's result, against the reference's sequence (five deletes, two volumes, create, start, exec)", pair{
			target: 0.75, rounds: max(5, b.rounds/4), ours: b.createOurs, theirs: b.createReference,
		}),
		{"create out of a warm pool of the same spec", b.createWarm},
	}
}

// createWarm takes one sandbox after the other out of a pool, each when the next
// is ready.
func (b *bench) createWarm() (string, error) {
	p, err := docker.New(b.ctx, docker.Config{AgentBinary: b.binary})
	if err != nil {
		return "", err
	}
	created := &announcer{Provider: p, done: make(chan error, 16)}
	warm := pool.New(created, pool.Options{Ahead: 1})
	defer warm.Close()
	const target = 15 * time.Millisecond
	all, err := b.sample(max(5, b.rounds/6), func(round int) error {
		sb, err := warm.Create(b.ctx, provider.Spec{Image: b.image})
		if err != nil {
			return err
		}
		b.later(func() {
			sb.Destroy(b.ctx)
			<-created.done // the next one
			if round < 0 {
				<-created.done // the first was not there yet, so it was created too
			}
			time.Sleep(settle)
		})
		return nil
	})
	if err != nil {
		return "", err
	}
	p50 := median(all)
	return alone(fmt.Sprintf("%.2f ms", ms(p50)), "15 ms", p50 < target), nil
}

// announcer tells of each create that has ended.
type announcer struct {
	provider.Provider
	done chan error
}

func (a *announcer) Create(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	sb, err := a.Provider.Create(ctx, spec)
	a.done <- err
	return sb, err
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
