package docker_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"testing"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// An engine that lists more than it was asked for, as Podman does with volumes,
// must not make a sandbox take others along when it is destroyed.
func TestEngineThatFiltersTooLittle(t *testing.T) {
	t.Parallel()
	testenv.Engine(t)
	const key = testLabel + ".filter"
	scope := provider.GenerateName()
	p, err := docker.New(t.Context(), docker.Config{
		Endpoint: loose(t, key+"="+scope), Image: testenv.Image(t, testenv.Busybox), AgentBinary: testenv.Binary(t),
		Labels: map[string]string{testLabel: "docker", key: scope},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	one, other := create(t, p, provider.Spec{}), create(t, p, provider.Spec{})
	// Running, it would hold its volumes.
	if err := other.Suspend(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := left(t, other.Name())
	if len(before) == 0 {
		t.Fatal("the other sandbox has nothing")
	}
	if err := one.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l := left(t, one.Name()); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
	if after := left(t, other.Name()); !slices.Equal(before, after) {
		t.Errorf("of the other sandbox %v were there, now %v", before, after)
	}
}

// loose stands before the tests' engine and answers every list with all that has
// one label, whatever was asked for: no more, since a provider that believes it
// would remove all of that.
func loose(t *testing.T, scope string) (endpoint string) {
	t.Helper()
	engine, err := url.Parse(testenv.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	filters, err := json.Marshal(map[string][]string{"label": {scope}})
	if err != nil {
		t.Fatal(err)
	}
	network, address := "unix", engine.Path
	if engine.Scheme == "tcp" {
		network, address = "tcp", engine.Host
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, address)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	proxy := &httputil.ReverseProxy{Transport: transport, Rewrite: func(r *httputil.ProxyRequest) {
		r.Out.URL.Scheme, r.Out.URL.Host = "http", "docker"
		q := r.In.URL.Query()
		if q.Has("filters") {
			q.Set("filters", string(filters))
			r.Out.URL.RawQuery = q.Encode()
		}
	}}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: proxy}
	go server.Serve(l)
	t.Cleanup(func() { server.Close() })
	return "unix://" + socket
}
