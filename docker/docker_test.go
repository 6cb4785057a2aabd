package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/client"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/provider/providertest"
)

// TestMain becomes the runner that some tests kill.
func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victim()
		return
	}
	os.Exit(m.Run())
}

func TestConformance(t *testing.T) {
	providertest.Run(t, providertest.Harness{
		New:       func(t testing.TB) provider.Provider { return newProvider(t, docker.Config{}) },
		Image:     testenv.Image(t, testenv.Busybox),
		BashImage: testenv.Image(t, testenv.Debian),
		BareImage: bareImage(t),
	})
}

// testLabel is on everything that this package's tests create.
const testLabel = "capyrun.test"

func newProvider(t testing.TB, cfg docker.Config) *docker.Provider {
	t.Helper()
	testenv.Engine(t)
	cfg.AgentBinary = testenv.Binary(t)
	if cfg.Image == "" {
		cfg.Image = testenv.Image(t, testenv.Busybox)
	}
	cfg.Labels = map[string]string{testLabel: "docker"}
	p, err := docker.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// engine is the plain Docker client: tests look at what the provider does, and
// play the stranger, without going through it.
func engine(t testing.TB) *client.Client {
	t.Helper()
	testenv.Engine(t)
	api, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { api.Close() })
	api.NegotiateAPIVersion(t.Context()) // the first calls would race to do so
	return api
}

const bareName = "capyrun-test-bare:latest"

var importBare sync.Mutex

// bareImage imports an image with one empty directory.
func bareImage(t testing.TB) string {
	t.Helper()
	importBare.Lock()
	defer importBare.Unlock()
	api := engine(t)
	if _, err := api.ImageInspect(t.Context(), bareName); err == nil {
		return bareName
	}
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "empty/", Mode: 0o755})
	tw.Close()
	importImage(t, api, bareName, &b)
	return bareName
}

func importImage(t testing.TB, api *client.Client, name string, layer io.Reader, changes ...string) {
	t.Helper()
	body, err := api.ImageImport(t.Context(), image.ImportSource{Source: layer, SourceName: "-"}, name, image.ImportOptions{Changes: changes})
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if out, err := io.ReadAll(body); err != nil || strings.Contains(string(out), `"error"`) {
		t.Fatalf("import: %s, %v", out, err)
	}
}

func removeImageByName(t testing.TB, api *client.Client, name string) {
	t.Helper()
	if _, err := api.ImageRemove(context.Background(), name, image.RemoveOptions{Force: true}); err != nil {
		t.Error(err)
	}
}

// agentContainers are the containers that mark a filled agent volume.
func agentContainers(t testing.TB) []string {
	t.Helper()
	list, err := engine(t).ContainerList(context.Background(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", provider.LabelRole+"="+provider.RoleAgent))})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range list {
		names = append(names, strings.TrimPrefix(c.Names[0], "/"))
	}
	return names
}

func create(t testing.TB, p provider.Provider, spec provider.Spec) provider.Sandbox {
	t.Helper()
	sb, err := p.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return sb
}

func run(t testing.TB, sb provider.Sandbox, line string) string {
	t.Helper()
	r, err := sb.Exec(t.Context(), provider.Command{Shell: line})
	if err != nil || !r.OK() {
		t.Fatalf("%s: %+v, %v", line, r, err)
	}
	return string(r.Stdout)
}

// left lists what of a sandbox is on the engine.
func left(t testing.TB, name string) []string {
	t.Helper()
	return testenv.Resources(t, provider.LabelName, name)
}
