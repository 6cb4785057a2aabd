package docker_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/volume"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// podman answers as Podman 4.3 does, as far as these tests ask, and refuses to
// create containers.
func podman(t *testing.T, volumes chan<- volume.CreateOptions) (endpoint string) {
	t.Helper()
	answer := func(body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Api-Version", "1.41")
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte(body))
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/_ping", answer("OK"))
	mux.HandleFunc("/v1.41/version", answer(`{"Components":[{"Name":"Podman Engine","Version":"4.3.1"},{"Name":"Conmon","Version":"2.1.6"}],
		"Version":"4.3.1","ApiVersion":"1.41","MinAPIVersion":"1.24","Os":"linux","Arch":"amd64"}`))
	mux.HandleFunc("/v1.41/info", answer(`{"ServerVersion":"4.3.1","Runtimes":{"runc":{}},"MemoryLimit":true,"PidsLimit":true,"CpuCfsQuota":true,"SwapLimit":true}`))
	mux.HandleFunc("GET /v1.41/containers/json", answer(`[]`))
	mux.HandleFunc("GET /v1.41/networks", answer(`[]`))
	mux.HandleFunc("GET /v1.41/volumes", answer(`{}`))
	mux.HandleFunc("POST /v1.41/volumes/create", func(w http.ResponseWriter, r *http.Request) {
		var o volume.CreateOptions
		if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
			t.Error(err)
		}
		volumes <- o
		json.NewEncoder(w).Encode(volume.Volume{Name: o.Name, Labels: o.Labels})
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return strings.Replace(s.URL, "http:", "tcp:", 1)
}

func TestPodman(t *testing.T) {
	t.Parallel()
	volumes := make(chan volume.CreateOptions, 10)
	p, err := docker.New(t.Context(), docker.Config{Endpoint: podman(t, volumes), AgentBinary: testenv.Binary(t), Pull: docker.PullNever})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	for _, c := range p.Doctor(t.Context()) {
		if c.Name == "engine" && (c.Status != docker.CheckWarn || !strings.Contains(c.Detail, "Podman 4.3.1") || c.Fix == "") {
			t.Errorf("doctor: %+v", c)
		}
	}

	// It gives a volume that does not say whose it is to the first container's user,
	// and skills must be root's.
	if _, err := p.Create(t.Context(), provider.Spec{}); err == nil {
		t.Fatal("created without containers")
	}
	owners := map[string]string{}
	for len(volumes) > 0 {
		o := <-volumes
		owners[o.Labels[provider.LabelRole]] = o.DriverOpts["o"]
	}
	if owners[provider.RoleSkills] != "uid=0,gid=0" || owners[provider.RoleWorkspace] != "uid=1000,gid=1000" {
		t.Errorf("volumes are created for %v", owners)
	}
}
