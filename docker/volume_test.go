package docker_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// volumePlugin is a volume driver for an engine of the test's own: each volume
// is a file system in memory of the option "size", and has something in it, as a
// new ext4 has.
type volumePlugin struct {
	engine *testenv.PrivateEngine

	mu      sync.Mutex
	volumes map[string]string // name -> path
	sizes   []string          // all that were asked for
}

func newVolumePlugin(t *testing.T, e *testenv.PrivateEngine, driver string) *volumePlugin {
	t.Helper()
	v := &volumePlugin{engine: e, volumes: map[string]string{}}
	l, err := net.Listen("unix", filepath.Join(e.Plugins(), driver+".sock"))
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(v.serve)}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return v
}

func (v *volumePlugin) serve(w http.ResponseWriter, r *http.Request) {
	var req struct {
		Name string
		Opts map[string]string
	}
	json.NewDecoder(r.Body).Decode(&req) // some requests have no body
	v.mu.Lock()
	defer v.mu.Unlock()
	path, known := v.volumes[req.Name]
	volume := map[string]string{"Name": req.Name, "Mountpoint": path}
	answer := map[string]any{}
	switch strings.TrimPrefix(r.URL.Path, "/VolumeDriver.") {
	case "/Plugin.Activate":
		answer["Implements"] = []string{"VolumeDriver"}
	case "Capabilities":
		answer["Capabilities"] = map[string]string{"Scope": "local"}
	case "Create":
		if err := v.create(req.Name, req.Opts); err != nil {
			answer["Err"] = err.Error()
		}
	case "Remove":
		if err := v.engine.Run("umount", path); err != nil {
			answer["Err"] = err.Error()
			break
		}
		delete(v.volumes, req.Name)
	case "Get":
		if answer["Volume"] = volume; !known {
			answer = map[string]any{"Err": "no such volume"}
		}
	case "List":
		list := []map[string]string{}
		for name, path := range v.volumes {
			list = append(list, map[string]string{"Name": name, "Mountpoint": path})
		}
		answer["Volumes"] = list
	case "Mount", "Path":
		answer["Mountpoint"] = path
	}
	json.NewEncoder(w).Encode(answer)
}

func (v *volumePlugin) create(name string, opts map[string]string) error {
	for key := range opts {
		if key != "size" {
			return fmt.Errorf("unknown option %q", key)
		}
	}
	size := opts["size"]
	if size == "6666666" {
		return errors.New("the size must be a multiple of a block")
	}
	v.sizes = append(v.sizes, size)
	path := filepath.Join(v.engine.Dir(), "volumes-"+name)
	if err := v.engine.Run("mkdir", "-p", path); err != nil {
		return err
	}
	args := []string{"mount", "-t", "tmpfs"}
	if size != "" {
		args = append(args, "-o", "size="+size)
	}
	if err := v.engine.Run(append(args, "tmpfs", path)...); err != nil {
		return err
	}
	v.volumes[name] = path
	return v.engine.Run("mkdir", filepath.Join(path, "lost+found"))
}

func (v *volumePlugin) names() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Sorted(maps.Keys(v.volumes))
}

// A full workspace fails what is written, and nothing else.
func TestDiskLimit(t *testing.T) {
	t.Parallel()
	e := testenv.NewPrivateEngine(t)
	plugin := newVolumePlugin(t, e, "bounded")
	p := newProvider(t, docker.Config{Endpoint: e.Endpoint, VolumeDriver: "bounded"})
	ctx, events := watch(t.Context())
	sb, err := p.Create(ctx, provider.Spec{Disk: 16 << 20, Memory: 128 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events() {
		if e.Type == event.Log {
			t.Errorf("unexpected: %s", e.Text)
		}
	}
	if got := run(t, sb, "id -u; stat -c %u /workspace; touch mine; df -m /workspace | tail -n 1 | awk '{print $2}'"); got != "1000\n1000\n16\n" {
		t.Errorf("user, owner and size of the workspace: %q", got)
	}
	for _, place := range []string{"/workspace", "/tmp"} { // /tmp has the size of the workspace
		file := place + "/file"
		if err := sb.WriteFile(ctx, file, strings.NewReader("old"), provider.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		err = sb.WriteFile(ctx, file, bytes.NewReader(make([]byte, 20<<20)), provider.WriteOptions{})
		if !errors.Is(err, provider.ErrNoSpace) || !strings.Contains(err.Error(), place) || !strings.Contains(err.Error(), sb.Name()) {
			t.Errorf("%s: a write beyond the limit: %v", place, err)
		}
		if got := run(t, sb, "cat "+file+"; ls -A "+place+" | grep -c '[.]tmp' || true"); got != "old0\n" {
			t.Errorf("%s after the failed write: %q", place, got)
		}
		r, err := sb.Exec(ctx, provider.Command{Shell: "dd if=/dev/zero of=" + place + "/big bs=1M count=20"})
		if err != nil || r.ExitCode == 0 || !strings.Contains(string(r.Stderr), "No space left on device") {
			t.Errorf("%s: a command beyond the limit: %+v, %v", place, r, err)
		}
		// Now that it is full: commands run, files are read, and room is room.
		if err := sb.Mkdir(ctx, place+"/d"); err != nil && !errors.Is(err, provider.ErrNoSpace) {
			t.Error(err)
		}
		if got := run(t, sb, "cat "+file+"; echo; rm "+place+"/big"); got != "old\n" {
			t.Errorf("%s: got %q", place, got)
		}
		if err := sb.WriteFile(ctx, file, bytes.NewReader(make([]byte, 8<<20)), provider.WriteOptions{}); err != nil {
			t.Errorf("%s: there is room: %v", place, err)
		}
	}
	if err := sb.Suspend(ctx); err != nil {
		t.Fatal(err)
	}
	if got := run(t, sb, "wc -c < file"); strings.TrimSpace(got) != "8388608" {
		t.Errorf("after suspend: %q", got)
	}
	if got := plugin.names(); !slices.Equal(got, []string{sb.Name() + "-workspace"}) {
		t.Errorf("the driver's volumes: %v", got)
	}
	if err := sb.Destroy(ctx); err != nil {
		t.Error(err)
	}
	if got := plugin.names(); len(got) > 0 || !slices.Equal(plugin.sizes, []string{"16777216"}) {
		t.Errorf("left in the driver: %v; sizes asked for: %q", got, plugin.sizes)
	}

	t.Run("not enforceable", func(t *testing.T) {
		for _, c := range []struct {
			driver string
			disk   int64
			kind   provider.Kind
			text   string
		}{
			{"bounded", 6666666, provider.ErrLimit, "multiple of a block"},
			{"local", 16 << 20, provider.ErrLimit, "quota"},
			{"nowhere", 16 << 20, provider.ErrLimit, "does not have"},
		} {
			p := newProvider(t, docker.Config{Endpoint: e.Endpoint, VolumeDriver: c.driver})
			sb, err := p.Create(t.Context(), provider.Spec{Disk: c.disk})
			if err == nil && c.driver == "local" {
				// The machine's disk has quotas: then the limit must hold.
				r, err := sb.Exec(t.Context(), provider.Command{Shell: "dd if=/dev/zero of=big bs=1M count=20"})
				if err != nil || r.ExitCode == 0 {
					t.Errorf("%+v, %v", r, err)
				}
				sb.Destroy(t.Context())
				continue
			}
			if !errors.Is(err, c.kind) || !strings.Contains(fmt.Sprint(err), c.text) {
				t.Errorf("driver %s, disk %d: %v", c.driver, c.disk, err)
			}
			t.Log(err)
		}
		if got := plugin.names(); len(got) > 0 {
			t.Errorf("left in the driver: %v", got)
		}
	})

	t.Run("without driver", func(t *testing.T) {
		p := newProvider(t, docker.Config{Endpoint: e.Endpoint})
		ctx, events := watch(t.Context())
		for range 2 {
			sb, err := p.Create(ctx, provider.Spec{Disk: 16 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if err := sb.Destroy(ctx); err != nil {
				t.Error(err)
			}
		}
		var warnings []string
		for _, e := range events() {
			if e.Level == event.Warning {
				warnings = append(warnings, e.Text)
			}
		}
		if len(warnings) != 1 || !strings.Contains(warnings[0], "volume_driver") {
			t.Errorf("warnings: %q", warnings)
		}
	})
}
