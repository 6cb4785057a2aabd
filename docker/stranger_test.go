package docker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// Nothing without our label is stopped, removed or overwritten, whatever its
// name: each stranger takes one of the names that a sandbox would have, every
// operation is tried, and then the stranger must be there as it was.
func TestStrangersSurvive(t *testing.T) {
	p := newProvider(t, docker.Config{})
	ctx := t.Context()
	img := testenv.Image(t, testenv.Busybox)

	// Each makes a stranger whose own cleanup fails where it did not survive.
	strangers := map[string]func(t *testing.T, sandbox string){
		"container":        func(t *testing.T, sandbox string) { strangerContainer(t, sandbox, img) },
		"helper container": func(t *testing.T, sandbox string) { strangerContainer(t, sandbox+provider.SuffixHelper, img) },
		"workspace volume": func(t *testing.T, sandbox string) { strangerVolume(t, sandbox+provider.SuffixWorkspace) },
		"skills volume":    func(t *testing.T, sandbox string) { strangerVolume(t, sandbox+provider.SuffixSkills) },
		"network":          func(t *testing.T, sandbox string) { strangerNetwork(t, sandbox+provider.SuffixNetwork) },
	}
	for what, makeStranger := range strangers {
		t.Run(what, func(t *testing.T) {
			name := provider.GenerateName()
			makeStranger(t, name)
			for _, replace := range []bool{false, true} {
				sb, err := p.Create(ctx, provider.Spec{Name: name, Replace: replace})
				switch {
				case what == "network": // a sandbox without egress has no network of its own
					if err != nil {
						t.Fatal(err)
					}
					if err := sb.Destroy(ctx); err != nil {
						t.Error(err)
					}
				case !errors.Is(err, provider.ErrNotOurs):
					t.Errorf("create with replace %v: %v", replace, err)
				}
			}
			err := p.Destroy(ctx, name)
			if want := provider.ErrGone; what == "container" {
				want = provider.ErrNotOurs
				if !errors.Is(err, want) {
					t.Errorf("destroy: %v", err)
				}
				if _, err := p.Open(ctx, name); !errors.Is(err, want) {
					t.Errorf("open: %v", err)
				}
			} else if !errors.Is(err, want) {
				t.Errorf("destroy: %v", err)
			}
			if _, err := p.Sweep(ctx); err != nil {
				t.Error(err)
			}
			if l := left(t, name); len(l) > 0 {
				t.Errorf("left of ours: %v", l)
			}
		})
	}

	t.Run("an id is not a name", func(t *testing.T) {
		id := strangerContainer(t, provider.GenerateName(), img)
		for _, name := range []string{id, id[:12]} {
			if err := p.Destroy(ctx, name); !errors.Is(err, provider.ErrGone) {
				t.Errorf("destroy %s: %v", name, err)
			}
			if _, err := p.Open(ctx, name); !errors.Is(err, provider.ErrGone) {
				t.Errorf("open %s: %v", name, err)
			}
		}
	})
}

// strangerContainer runs somebody else's container and returns its id. When the
// test ends it must still run, with the file that it has made.
func strangerContainer(t *testing.T, name, img string) string {
	t.Helper()
	api := engine(t)
	ctx := context.Background()
	c, err := api.ContainerCreate(ctx, &container.Config{Image: img, Cmd: []string{"sh", "-c", "echo mine > /mine; exec sleep 100000"}},
		&container.HostConfig{NetworkMode: "none"}, nil, nil, name)
	if err != nil {
		t.Fatal(err)
	}
	if err := api.ContainerStart(ctx, c.ID, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	started, err := api.ContainerInspect(ctx, c.ID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now, err := api.ContainerInspect(ctx, c.ID)
		if err != nil || !now.State.Running || now.State.StartedAt != started.State.StartedAt || now.Name != "/"+name {
			t.Errorf("the stranger %s did not survive: %v", name, err)
		}
		zero := 0
		api.ContainerStop(ctx, c.ID, container.StopOptions{Timeout: &zero})
		api.ContainerRemove(ctx, c.ID, container.RemoveOptions{Force: true})
	})
	return c.ID
}

func strangerVolume(t *testing.T, name string) {
	t.Helper()
	api := engine(t)
	ctx := context.Background()
	before, err := api.VolumeCreate(ctx, volume.CreateOptions{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		now, err := api.VolumeInspect(ctx, name)
		if err != nil || now.CreatedAt != before.CreatedAt {
			t.Errorf("the stranger %s did not survive: %v", name, err)
		}
		api.VolumeRemove(ctx, name, true)
	})
}

func strangerNetwork(t *testing.T, name string) {
	t.Helper()
	api := engine(t)
	n, err := api.NetworkCreate(context.Background(), name, network.CreateOptions{Driver: "bridge"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.NetworkRemove(context.Background(), n.ID); err != nil {
			t.Errorf("the stranger %s did not survive: %v", name, err)
		}
	})
}
