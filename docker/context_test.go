package docker

import (
	"os"
	"path/filepath"
	"testing"
)

// The hint is for the machine whose default socket nobody listens at, which the
// tests' machine is not.
func TestUnusedContext(t *testing.T) {
	for _, c := range []struct {
		endpoint, host, env, file string
		want                      string
	}{
		{endpoint: DefaultEndpoint},
		{endpoint: DefaultEndpoint, file: `{"currentContext":"default"}`},
		{endpoint: DefaultEndpoint, file: `{"currentContext":"colima"}`, want: "colima"},
		{endpoint: DefaultEndpoint, file: `{"currentContext":"colima"}`, env: "rootless", want: "rootless"},
		{endpoint: DefaultEndpoint, file: `{"currentContext":"colima"}`, env: "default"},
		{endpoint: DefaultEndpoint, file: `{"currentContext":"colima"}`, host: DefaultEndpoint},
		{endpoint: "tcp://127.0.0.1:1", file: `{"currentContext":"colima"}`},
		{endpoint: DefaultEndpoint, file: `{broken`},
	} {
		dir := t.TempDir()
		if c.file != "" {
			if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(c.file), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("DOCKER_CONFIG", dir)
		t.Setenv("DOCKER_CONTEXT", c.env)
		t.Setenv("DOCKER_HOST", c.host)
		if got := unusedContext(c.endpoint); got != c.want {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}
