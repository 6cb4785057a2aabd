package docker_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/provider"
)

func TestRuntime(t *testing.T) {
	t.Parallel()
	api := engine(t)

	// Every engine has its own runc by a second name, too.
	const other = "io.containerd.runc.v2"
	sb := create(t, newProvider(t, docker.Config{Runtime: other}), provider.Spec{})
	c, err := api.ContainerInspect(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	if c.HostConfig.Runtime != other {
		t.Errorf("the runtime is %q", c.HostConfig.Runtime)
	}
	if got := run(t, sb, "echo runs"); got != "runs\n" {
		t.Errorf("got %q", got)
	}

	name := provider.GenerateName()
	p := newProvider(t, docker.Config{Runtime: "capyrun-nowhere"})
	_, err = p.Create(t.Context(), provider.Spec{Name: name})
	var invalid *provider.InvalidError
	if !errors.As(err, &invalid) || invalid.Field != "runtime" || invalid.Value != "capyrun-nowhere" ||
		!strings.Contains(invalid.Reason, "runc") || !strings.Contains(invalid.Reason, "daemon.json") || !strings.Contains(err.Error(), name) {
		t.Errorf("got %v", err)
	}
	if l := left(t, name); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
	for _, check := range p.Doctor(t.Context()) {
		if check.Name == "runtime" && (check.Status != docker.CheckFail || !strings.Contains(check.Detail, "runc") || !strings.Contains(check.Fix, "daemon.json")) {
			t.Errorf("doctor: %+v", check)
		}
	}
}
