package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"
)

// Endpoint is where the tests' engine is: DOCKER_HOST or the default socket.
func Endpoint() string {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		return host
	}
	return "unix:///var/run/docker.sock"
}

// Engine skips the test where no engine answers, or fails it when
// REQUIRE_DOCKER is set.
func Engine(t testing.TB) {
	t.Helper()
	err := ping()
	if err == nil {
		return
	}
	if os.Getenv("REQUIRE_DOCKER") != "" {
		t.Fatalf("REQUIRE_DOCKER is set and no engine answers at %s: %v", Endpoint(), err)
	}
	t.Skipf("no engine answers at %s: %v (REQUIRE_DOCKER=1 makes this a failure)", Endpoint(), err)
}

var ping = sync.OnceValue(func() error { return Get("/_ping", nil) })

// client speaks to the engine directly: the Docker client belongs to package
// docker alone, and what tests look at should not go through what they test.
func client() (c *http.Client, base string, err error) {
	u, err := url.Parse(Endpoint())
	if err != nil {
		return nil, "", err
	}
	tr := &http.Transport{DisableKeepAlives: true}
	base = "http://" + u.Host
	switch u.Scheme {
	case "unix":
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", u.Path)
		}
		base = "http://docker"
	case "tcp":
	default:
		return nil, "", fmt.Errorf("tests take a unix:// or tcp:// DOCKER_HOST, not %s", Endpoint())
	}
	return &http.Client{Transport: tr, Timeout: 30 * time.Second}, base, nil
}

// Get asks the engine's API and decodes the JSON answer into v, unless v is nil.
func Get(path string, v any) error {
	c, base, err := client()
	if err != nil {
		return err
	}
	resp, err := c.Get(base + path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("GET %s: %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(body, v)
}

// Resources lists what of ours is on the engine and carries the label key=value:
// "container NAME", "network NAME" and "volume NAME", sorted. The agent's
// volumes are left out: they stay for the next sandbox.
func Resources(t testing.TB, key, value string) []string {
	t.Helper()
	filters, err := json.Marshal(map[string][]string{"label": {key + "=" + value}})
	if err != nil {
		t.Fatal(err)
	}
	query := "?filters=" + url.QueryEscape(string(filters))
	type resource struct {
		Name   string
		Names  []string
		Labels map[string]string
	}
	var containers, networks []resource
	var volumes struct{ Volumes []resource }
	for _, ask := range []struct {
		path string
		into any
	}{
		{"/containers/json" + query + "&all=1", &containers},
		{"/networks" + query, &networks},
		{"/volumes" + query, &volumes},
	} {
		if err := Get(ask.path, ask.into); err != nil {
			t.Fatal(err)
		}
	}
	var out []string
	add := func(kind string, list []resource) {
		for _, r := range list {
			if r.Labels["dev.capybara.sandbox.role"] == "agent" {
				continue
			}
			name := r.Name
			if len(r.Names) > 0 {
				name = strings.TrimPrefix(r.Names[0], "/")
			}
			out = append(out, kind+" "+name)
		}
	}
	add("container", containers)
	add("network", networks)
	add("volume", volumes.Volumes)
	sort.Strings(out)
	return out
}
