package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// The engine's own view of a sandbox: what is set there cannot be seen from
// inside in every case.
func TestHardening(t *testing.T) {
	t.Parallel()
	api := engine(t)
	sb := create(t, newProvider(t, docker.Config{}), provider.Spec{
		CPU: 0.5, Memory: 100 << 20, PIDs: 77, Disk: 20 << 20, Labels: map[string]string{"mine": "x"},
	})
	c, err := api.ContainerInspect(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	h := c.HostConfig
	for what, ok := range map[string]bool{
		"read-only root":     h.ReadonlyRootfs,
		"no capabilities":    slices.Equal(h.CapDrop, []string{"ALL"}) && len(h.CapAdd) == 0,
		"no new privileges":  slices.ContainsFunc(h.SecurityOpt, func(s string) bool { return strings.HasPrefix(s, "no-new-privileges") }),
		"not privileged":     !h.Privileged,
		"private IPC":        h.IpcMode == "private",
		"no network":         h.NetworkMode == "none",
		"CPU":                h.NanoCPUs == 5e8,
		"memory":             h.Memory == 100<<20 && h.MemorySwap == 100<<20,
		"pids":               h.PidsLimit != nil && *h.PidsLimit == 77,
		"no logs":            h.LogConfig.Type == "none",
		"user":               c.Config.User == "1000:1000",
		"no health check":    c.Config.Healthcheck == nil || slices.Equal(c.Config.Healthcheck.Test, []string{"NONE"}),
		"tmp size":           strings.Contains(h.Tmpfs["/tmp"], "size=20971520"),
		"sandbox label":      c.Config.Labels[provider.LabelSandbox] == "1",
		"role label":         c.Config.Labels[provider.LabelRole] == provider.RoleSandbox,
		"name label":         c.Config.Labels[provider.LabelName] == sb.Name(),
		"owner label":        provider.ParseOwner(c.Config.Labels[provider.LabelOwner]) == provider.Self(),
		"the user's label":   c.Config.Labels["mine"] == "x",
		"the config's label": c.Config.Labels[testLabel] == "docker",
	} {
		if !ok {
			t.Errorf("not as it must be: %s", what)
		}
	}
	mounts := map[string]bool{} // destination -> writable
	for _, m := range c.Mounts {
		mounts[m.Destination] = m.RW
	}
	for dest, rw := range map[string]bool{"/workspace": true, "/skills": false, "/opt/capybara/skills": true, "/opt/capyrun": false} {
		if got, ok := mounts[dest]; !ok || got != rw {
			t.Errorf("mount %s: there %v, writable %v", dest, ok, got)
		}
	}
}

// An image brings its own entrypoint, user, volumes and health check; none of
// them may count.
func TestImageSettingsDoNotCount(t *testing.T) {
	t.Parallel()
	api := engine(t)
	const name = "capyrun-test-peculiar:latest"
	importImage(t, api, name, busyboxLayer(t),
		`ENTRYPOINT ["/bin/false"]`, `CMD ["nothing"]`, `USER 4711`, `VOLUME /data /workspace`, `WORKDIR /nowhere`,
		`ENV MINE=image HOME=/image`, `HEALTHCHECK CMD /bin/false`)
	t.Cleanup(func() { removeImageByName(t, api, name) })
	before := anonymousVolumes(t)
	sb := create(t, newProvider(t, docker.Config{}), provider.Spec{Image: name})
	if got, want := run(t, sb, "id -u; pwd; echo $HOME $MINE"), "1000\n/workspace\n/workspace image\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := sb.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, v := range anonymousVolumes(t) {
		if !slices.Contains(before, v) {
			t.Errorf("the anonymous volume %s is left", v)
		}
	}
}

func anonymousVolumes(t *testing.T) []string {
	var list struct{ Volumes []struct{ Name string } }
	if err := testenv.Get("/volumes", &list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range list.Volumes {
		if len(v.Name) == 64 {
			names = append(names, v.Name)
		}
	}
	return names
}

// busyboxLayer is the file system of the busybox image.
func busyboxLayer(t *testing.T) *bytes.Buffer {
	api := engine(t)
	c, err := api.ContainerCreate(t.Context(), &container.Config{Image: testenv.Image(t, testenv.Busybox), Cmd: []string{"true"}, Labels: map[string]string{testLabel: "docker"}}, nil, nil, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	defer api.ContainerRemove(t.Context(), c.ID, container.RemoveOptions{Force: true})
	body, err := api.ContainerExport(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	var b bytes.Buffer
	if _, err := b.ReadFrom(body); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestImagePlatform(t *testing.T) {
	t.Parallel()
	api := engine(t)
	const name = "capyrun-test-foreign:latest"
	// Engines take the platform of an import in different ways, so the image is
	// loaded with a configuration that says it.
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	add := func(name, data string) {
		tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))})
		tw.Write([]byte(data))
	}
	// The digest of an empty tar archive of 1024 bytes.
	const empty = "sha256:5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef"
	add("layer.tar", string(make([]byte, 1024)))
	add("config.json", `{"architecture":"s390x","os":"linux","config":{},"rootfs":{"type":"layers","diff_ids":["`+empty+`"]}}`)
	add("manifest.json", `[{"Config":"config.json","RepoTags":["`+name+`"],"Layers":["layer.tar"]}]`)
	tw.Close()
	resp, err := api.ImageLoad(t.Context(), &b)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || strings.Contains(string(out), "error") {
		t.Fatalf("load: %s, %v", out, err)
	}
	t.Cleanup(func() { removeImageByName(t, api, name) })
	_, err = newProvider(t, docker.Config{}).Create(t.Context(), provider.Spec{Image: name})
	if !errors.Is(err, provider.ErrImagePlatform) || !strings.Contains(err.Error(), "s390x") {
		t.Errorf("got %v", err)
	}
}

func TestOpenEgress(t *testing.T) {
	t.Parallel()
	_, err := newProvider(t, docker.Config{}).Create(t.Context(), provider.Spec{Egress: provider.EgressOpen})
	var invalid *provider.InvalidError
	if !errors.As(err, &invalid) || !strings.Contains(err.Error(), "allow_open_egress") {
		t.Errorf("without the operator's word: %v", err)
	}

	// A server on the host is what an open sandbox reaches and another does not.
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("reached\n")) })}
	go srv.Serve(l)
	defer srv.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())

	p := newProvider(t, docker.Config{AllowOpenEgress: true, Network: "capyrun-test-net"})
	sb := create(t, p, provider.Spec{Egress: provider.EgressOpen})
	api := engine(t)
	c, err := api.ContainerInspect(t.Context(), sb.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sb.Destroy(context.Background()); err != nil {
			t.Error(err)
		}
		if err := api.NetworkRemove(context.Background(), "capyrun-test-net-open"); err != nil {
			t.Error(err)
		}
	})
	gateway := c.NetworkSettings.Networks["capyrun-test-net-open"].Gateway
	fetch := "wget -q -O - http://" + net.JoinHostPort(gateway, port)
	if got := run(t, sb, fetch); got != "reached\n" {
		t.Errorf("got %q", got)
	}
	r, err := create(t, p, provider.Spec{}).Exec(t.Context(), provider.Command{Shell: fetch, Timeout: 5 * time.Second})
	if err != nil || r.OK() {
		t.Errorf("without network: %+v, %v", r, err)
	}

	// Two open sandboxes do not reach each other.
	other := create(t, p, provider.Spec{Egress: provider.EgressOpen})
	if _, err := other.Start(t.Context(), provider.Command{Shell: "nc -ll -p 8080 -e echo reached"}); err != nil {
		t.Fatal(err)
	}
	conn, err := dialUntil(t, other, "localhost:8080")
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	oc, err := api.ContainerInspect(t.Context(), other.Name())
	if err != nil {
		t.Fatal(err)
	}
	r, err = sb.Exec(t.Context(), provider.Command{Shell: "nc -w 1 " + oc.NetworkSettings.Networks["capyrun-test-net-open"].IPAddress + " 8080", Timeout: 5 * time.Second})
	if err != nil || strings.Contains(string(r.Stdout), "reached") {
		t.Errorf("a neighbour was reached: %+v, %v", r, err)
	}
}

func dialUntil(t *testing.T, sb provider.Sandbox, address string) (net.Conn, error) {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := sb.Dial(t.Context(), "tcp", address)
		if err == nil || time.Now().After(end) {
			return conn, err
		}
	}
}
