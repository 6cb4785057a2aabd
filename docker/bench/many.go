package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/capybara-hq/capyrun/provider"
)

const (
	manySandboxes = 100
	manyCommands  = 10 // in each
	manyMemory    = 150 << 20
)

func (b *bench) manyRows() []row {
	return []row{{fmt.Sprintf("the runner's memory with %d sandboxes and %d commands in flight", manySandboxes, manySandboxes*manyCommands), func() (string, error) {
		w, err := startWorker(b)
		if err != nil {
			return "", err
		}
		defer w.stop()
		kib, err := w.do("many")
		if err != nil {
			return "", err
		}
		return alone(fmt.Sprintf("%.0f MiB at its peak", float64(kib)/1024), "150 MiB", kib<<10 < manyMemory), nil
	}}}
}

// many holds sandboxes with commands in flight, all at once.
func many(whole context.Context, p provider.Provider, image string) (err error) {
	ctx, stop := context.WithCancel(whole)
	defer stop()
	sandboxes := make([]provider.Sandbox, manySandboxes)
	defer func() {
		var g errgroup.Group
		for _, sb := range sandboxes {
			if sb != nil {
				g.Go(func() error { return sb.Destroy(whole) })
			}
		}
		err = errors.Join(err, g.Wait())
	}()
	var creates errgroup.Group
	for i := range sandboxes {
		creates.Go(func() (err error) {
			sandboxes[i], err = p.Create(ctx, provider.Spec{Image: image, Memory: 64 << 20, PIDs: 64})
			return err
		})
	}
	if err := creates.Wait(); err != nil {
		return err
	}
	commands, running := errgroup.WithContext(ctx)
	defer func() {
		stop()
		if cerr := commands.Wait(); !errors.Is(cerr, context.Canceled) {
			err = cerr
		}
	}()
	for _, sb := range sandboxes {
		for range manyCommands {
			commands.Go(func() error {
				_, err := sb.Exec(running, provider.Command{Args: []string{"sleep", "98765"}})
				return err
			})
		}
	}
	for _, sb := range sandboxes {
		for {
			list, err := sb.Processes(running) // ends when a command fails
			if err != nil {
				return err
			}
			if len(list) == manyCommands {
				break
			}
			time.Sleep(settle)
		}
	}
	return nil
}
