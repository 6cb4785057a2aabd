package docker_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/image"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
)

// testRegistry is a real registry in this process. Engines speak plain HTTP to
// one at 127.0.0.1 without being configured for it.
type testRegistry struct {
	host  string // 127.0.0.1:port
	mu    sync.Mutex
	guard func(w http.ResponseWriter, r *http.Request) bool // reports that it has answered
	asked []string                                          // "GET /v2/..." by the engine
}

func newRegistry(t *testing.T) *testRegistry {
	t.Helper()
	engine(t)
	reg := &testRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("User-Agent") == pusher {
			inner.ServeHTTP(w, r)
			return
		}
		reg.mu.Lock()
		reg.asked = append(reg.asked, r.Method+" "+r.URL.Path)
		guard := reg.guard
		reg.mu.Unlock()
		if guard == nil || !guard(w, r) {
			inner.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		srv.CloseClientConnections() // the engine keeps its connections
		srv.Close()
	})
	reg.host = strings.TrimPrefix(srv.URL, "http://")
	return reg
}

// setGuard puts a handler before the registry, for the engine's requests.
func (reg *testRegistry) setGuard(guard func(http.ResponseWriter, *http.Request) bool) {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	reg.guard = guard
}

// layers is a guard that answers requests for a layer in its own way; data is
// what the registry has.
func (reg *testRegistry) layers(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, data []byte)) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
			return false
		}
		resp, err := (&http.Client{Transport: asPusher{}}).Get("http://" + reg.host + r.URL.Path)
		if err != nil {
			t.Error(err)
			return false
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Error(err)
		}
		if bytes.HasPrefix(data, []byte("{")) {
			return false // an image's configuration
		}
		answer(w, r, data)
		return true
	}
}

// count returns how many of the engine's requests contained a text.
func (reg *testRegistry) count(part string) int {
	reg.mu.Lock()
	defer reg.mu.Unlock()
	n := 0
	for _, r := range reg.asked {
		if strings.Contains(r, part) {
			n++
		}
	}
	return n
}

// pusher marks the requests of this test.
const pusher = "capyrun-test-push"

type asPusher struct{}

func (asPusher) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", pusher)
	return http.DefaultTransport.RoundTrip(r)
}

// push puts an image with one file, /mark, into the registry, and returns its
// reference and digest. The engine's copy is removed when the test ends.
func (reg *testRegistry) push(t *testing.T, repoTag, mark, arch string) (ref, digest string) {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "mark", Mode: 0o644, Size: int64(len(mark))})
	io.WriteString(tw, mark)
	tw.Close()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.ConfigFile(img, &v1.ConfigFile{OS: "linux", Architecture: arch, RootFS: must(img.ConfigFile()).RootFS}); err != nil {
		t.Fatal(err)
	}
	ref = reg.host + "/" + repoTag
	tag, err := name.NewTag(ref, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img, remote.WithTransport(asPusher{})); err != nil {
		t.Fatal(err)
	}
	d := must(img.Digest()).String()
	api := engine(t)
	t.Cleanup(func() {
		for _, name := range []string{ref, tag.Repository.Name() + "@" + d} {
			if _, err := api.ImageRemove(context.Background(), name, image.RemoveOptions{Force: true}); err != nil && !strings.Contains(err.Error(), "No such image") {
				t.Error(err)
			}
		}
	})
	return ref, d
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// arch is the engine's architecture.
func arch(t *testing.T) string {
	v, err := engine(t).ServerVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return v.Arch
}

// unique makes content that no other test or run has, so that the engine has
// no layer of it.
func unique() string { return provider.GenerateName() }

// watch collects the texts and errors of a context's events.
func watch(ctx context.Context) (context.Context, func() []event.Event) {
	var mu sync.Mutex
	var all []event.Event
	return event.NewContext(ctx, event.Func(func(e event.Event) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, e)
		})), func() []event.Event {
			mu.Lock()
			defer mu.Unlock()
			return append([]event.Event(nil), all...)
		}
}

func readMark(t *testing.T, sb provider.Sandbox) string {
	t.Helper()
	data, err := sb.ReadFile(t.Context(), "/mark", provider.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(data.Data)
}

func TestPullMissing(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	mark := unique()
	ref, _ := reg.push(t, "team/app:v1", mark, arch(t))
	p := newProvider(t, docker.Config{Pull: docker.PullMissing})
	ctx, events := watch(t.Context())

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			sb, err := p.Create(ctx, provider.Spec{Image: ref})
			if err != nil {
				t.Error(err)
				return
			}
			if got := readMark(t, sb); got != mark {
				t.Errorf("the image's file says %q, want %q", got, mark)
			}
			if err := sb.Destroy(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	create(t, p, provider.Spec{Image: ref})
	var pulls, layers int
	for _, e := range events() {
		switch {
		case e.Kind == event.KindPull && e.Type == event.Start:
			pulls++
			if !strings.Contains(e.Name, ref) || e.Sandbox == "" {
				t.Errorf("the pull's event: %+v", e)
			}
		case e.Type == event.Progress && strings.Contains(e.Text, "Pull complete"):
			layers++
		}
	}
	if pulls != 1 || layers != 1 {
		t.Errorf("%d pulls, %d layers reported, want one of each", pulls, layers)
	}
	if n := reg.count("GET /v2/team/app/blobs/"); n != 2 { // the configuration and the layer
		t.Errorf("%d blobs were read, want 2", n)
	}
}

func TestPullAlways(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	p := newProvider(t, docker.Config{Pull: docker.PullAlways})
	for range 2 {
		mark := unique()
		ref, _ := reg.push(t, "app:latest", mark, arch(t))
		for range 2 {
			before := reg.count("/manifests/latest")
			// Without the tag, which is "latest" then.
			if got := readMark(t, create(t, p, provider.Spec{Image: strings.TrimSuffix(ref, ":latest")})); got != mark {
				t.Errorf("the sandbox has %q, the registry %q", got, mark)
			}
			if reg.count("/manifests/latest") == before {
				t.Error("the registry was not asked")
			}
		}
	}
}

func TestPullNever(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	ref, _ := reg.push(t, "app:v1", unique(), arch(t))
	_, err := newProvider(t, docker.Config{Pull: docker.PullNever}).Create(t.Context(), provider.Spec{Image: ref})
	if !errors.Is(err, provider.ErrImageNotFound) || !strings.Contains(err.Error(), `pull is "never"`) || !strings.Contains(err.Error(), ref) {
		t.Errorf("got %v", err)
	}
	if reg.count("") != 0 {
		t.Error("the registry was asked")
	}
}

func TestPullDigest(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	mark := unique()
	_, digest := reg.push(t, "app:v1", mark, arch(t))
	reg.push(t, "app:v1", unique(), arch(t)) // the tag has moved on
	p := newProvider(t, docker.Config{})
	ref := reg.host + "/app@" + digest
	for range 2 {
		if got := readMark(t, create(t, p, provider.Spec{Image: ref})); got != mark {
			t.Errorf("got %q, want %q", got, mark)
		}
	}
	if n := reg.count("GET /v2/app/manifests/"); n != 1 {
		t.Errorf("the manifest was read %d times, want once", n)
	}
}

// What goes wrong at the registry is an error of the kind that tells callers
// what to do, and leaves no sandbox.
func TestPullFailures(t *testing.T) {
	t.Parallel()
	p := newProvider(t, docker.Config{})
	const other = "s390x"
	for _, c := range []struct {
		name  string
		arch  string
		tag   string                                                    // to pull; empty: what was pushed
		layer func(w http.ResponseWriter, r *http.Request, data []byte) // how the registry answers for the layer
		kind  provider.Kind
		text  string
	}{
		{name: "no such tag", tag: "elsewhere", kind: provider.ErrImageNotFound},
		{name: "no such repository", tag: "../nothing:v1", kind: provider.ErrImageNotFound},
		{name: "another platform", arch: other, kind: provider.ErrImagePlatform, text: other},
		{name: "no manifest but an error", kind: provider.ErrPullFailed, tag: "server-error"},
		{name: "layer that differs", kind: provider.ErrPullFailed, layer: func(w http.ResponseWriter, r *http.Request, data []byte) {
			w.Write(make([]byte, len(data)))
		}},
		{name: "layer that is not there", kind: provider.ErrPullFailed, layer: func(w http.ResponseWriter, r *http.Request, data []byte) {
			http.Error(w, `{"errors":[{"code":"BLOB_UNKNOWN","message":"blob unknown to registry"}]}`, http.StatusNotFound)
		}},
		{name: "words about TLS", kind: provider.ErrPullFailed, tag: "untrusted", text: "x509"},
		{name: "manifest that may not be read", kind: provider.ErrPullFailed, tag: "forbidden", text: "docker login"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.arch == "" {
				c.arch = arch(t)
			}
			t.Parallel()
			reg := newRegistry(t)
			ref, _ := reg.push(t, "broken:v1", unique(), c.arch)
			if rest, ok := strings.CutPrefix(c.tag, "../"); ok {
				ref = reg.host + "/" + rest
			} else if c.tag != "" {
				ref = reg.host + "/broken:" + c.tag
			}
			layers := reg.layers(t, c.layer)
			reg.setGuard(func(w http.ResponseWriter, r *http.Request) bool {
				switch filepath.Base(r.URL.Path) {
				case "server-error":
					http.Error(w, "the disk of the registry is full", http.StatusInternalServerError)
					return true
				case "untrusted": // as an engine reports a registry with another certificate
					http.Error(w, `{"errors":[{"code":"UNSUPPORTED","message":"tls: failed to verify certificate: x509: certificate signed by unknown authority"}]}`, http.StatusBadRequest)
					return true
				case "forbidden":
					http.Error(w, `{"errors":[{"code":"DENIED","message":"requested access to the resource is denied"}]}`, http.StatusForbidden)
					return true
				}
				return c.layer != nil && layers(w, r)
			})
			ctx, events := watch(t.Context())
			sandbox := provider.GenerateName()
			_, err := p.Create(ctx, provider.Spec{Name: sandbox, Image: ref})
			var perr *provider.Error
			if !errors.Is(err, c.kind) || !errors.As(err, &perr) || perr.Sandbox != sandbox || !strings.Contains(err.Error(), ref) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want a %q", err, c.kind)
			}
			t.Log(err)
			ended := false
			for _, e := range events() {
				ended = ended || e.Kind == event.KindPull && e.Type == event.End && e.Error != ""
			}
			if !ended && c.kind != provider.ErrImagePlatform { // which is seen after the pull
				t.Error("no event says that the pull has failed")
			}
			if l := left(t, sandbox); len(l) > 0 {
				t.Errorf("left: %v", l)
			}
		})
	}
}

// A cancel in the middle of a layer ends the pull on the engine too.
func TestPullCancel(t *testing.T) {
	t.Parallel()
	reg := newRegistry(t)
	p := newProvider(t, docker.Config{})
	noise := make([]byte, 1<<16) // that cannot be compressed
	rand.Read(noise)
	ref, _ := reg.push(t, "slow:v1", string(noise), arch(t))
	began, gone := make(chan struct{}), make(chan struct{})
	reg.setGuard(reg.layers(t, func(w http.ResponseWriter, r *http.Request, data []byte) {
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		for i := range data {
			if i == len(data)/2 {
				close(began)
			}
			// The engine looks at its cancel when something comes.
			if i >= len(data)/2 {
				time.Sleep(10 * time.Millisecond)
			}
			w.Write(data[i : i+1])
			if err := http.NewResponseController(w).Flush(); err != nil || r.Context().Err() != nil {
				break // it has hung up
			}
		}
		close(gone)
	}))
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	sandbox := provider.GenerateName()
	failed := make(chan error)
	go func() {
		_, err := p.Create(ctx, provider.Spec{Name: sandbox, Image: ref})
		failed <- err
	}()
	<-began
	cancel(why)
	begin := time.Now()
	if err := <-failed; !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("the create returned %v after the cancel", took)
	}
	select {
	case <-gone:
	case <-time.After(30 * time.Second):
		t.Fatal("the engine goes on with the pull")
	}
	if l := left(t, sandbox); len(l) > 0 {
		t.Errorf("left: %v", l)
	}
	if _, err := engine(t).ImageInspect(t.Context(), ref); err == nil {
		t.Error("the image is there")
	}
	// The next pull does not meet the remains of this one.
	reg.setGuard(nil)
	create(t, p, provider.Spec{Image: ref})
}

func TestImageReferences(t *testing.T) {
	t.Parallel()
	p := newProvider(t, docker.Config{})
	for _, ref := range []string{"a/UPPER", "a//b", "x:", "x@sha256:12", "-x", "https://example.com/x"} {
		var invalid *provider.InvalidError
		if _, err := p.Create(t.Context(), provider.Spec{Image: ref}); !errors.As(err, &invalid) || invalid.Field != "image" {
			t.Errorf("%q: %v", ref, err)
		}
	}
	id := strings.Repeat("0123456789abcdef", 4)
	for _, ref := range []string{id, "sha256:" + id} {
		if _, err := p.Create(t.Context(), provider.Spec{Image: ref}); !errors.Is(err, provider.ErrImageNotFound) {
			t.Errorf("%q: %v", ref, err)
		}
	}
}

// basicAuth lets nobody but user:secret through.
func basicAuth(user, secret string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		u, s, ok := r.BasicAuth()
		if ok && u == user && s == secret {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
		return true
	}
}

// tokenAuth wants a bearer token, which it gives for an identity token.
func tokenAuth(reg *testRegistry, identity string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		switch {
		case r.URL.Path == "/token" && r.Method == http.MethodPost && r.FormValue("grant_type") == "refresh_token" && r.FormValue("refresh_token") == identity:
			json.NewEncoder(w).Encode(map[string]string{"access_token": "granted"})
		case r.URL.Path == "/token":
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"wrong token"}]}`, http.StatusUnauthorized)
		case r.Header.Get("Authorization") == "Bearer granted":
			return false
		default:
			w.Header().Set("WWW-Authenticate", `Bearer realm="http://`+reg.host+`/token",service="test"`)
			w.WriteHeader(http.StatusUnauthorized)
			io.WriteString(w, `{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`)
		}
		return true
	}
}

// TestRegistryCredentials sets the environment, so it runs alone.
func TestRegistryCredentials(t *testing.T) {
	const user, secret = "petra", "hunter2-do-not-print"
	reg := newRegistry(t)
	encoded := base64.StdEncoding.EncodeToString([]byte(user + ":" + secret))
	auths := func(host, auth string) string {
		return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)
	}
	wrong := base64.StdEncoding.EncodeToString([]byte(user + ":wrong-" + secret))
	answer := func(user, secret string) string {
		return fmt.Sprintf(`read host; [ "$1 $host" = "get %s" ] || exit 3; echo '{"ServerURL":"%s","Username":"%s","Secret":"%s"}'`, reg.host, reg.host, user, secret)
	}
	notFound := `echo credentials not found in native keychain; exit 1`
	store, helper := `{"credsStore":"capyruntest","auths":{"`+reg.host+`":{}}}`, `{"credsStore":"none","credHelpers":{"`+reg.host+`":"capyruntest"}}`

	for _, c := range []struct {
		name   string
		config string // config.json; empty: none
		env    string // DOCKER_AUTH_CONFIG
		helper string // a shell script; empty: no such program
		guard  func(http.ResponseWriter, *http.Request) bool
		kind   provider.Kind // empty: it works
		texts  []string      // of the error or the warning
	}{
		{name: "in the file", config: auths(reg.host, encoded)},
		{name: "in the file, with a scheme", config: auths("http://"+reg.host+"/v1/", encoded)},
		{name: "in the environment", env: auths(reg.host, encoded), config: auths(reg.host, wrong)},
		{name: "of a store", config: store, helper: answer(user, secret)},
		{name: "of a helper", config: helper, helper: answer(user, secret)},
		{name: "identity token in the file", guard: tokenAuth(reg, secret), config: `{"auths":{"` + reg.host + `":{"identitytoken":"` + secret + `"}}}`},
		{name: "identity token of a helper", guard: tokenAuth(reg, secret), config: helper, helper: answer("<token>", secret)},

		{name: "none", kind: provider.ErrPullFailed, texts: []string{"docker login " + reg.host}},
		{name: "for another registry", config: auths("example.com", encoded), kind: provider.ErrPullFailed, texts: []string{"docker login " + reg.host}},
		{name: "wrong", config: auths(reg.host, wrong), kind: provider.ErrPullFailed, texts: []string{"did not take the credentials"}},
		{name: "wrong identity token", guard: tokenAuth(reg, "another"), config: helper, helper: answer("<token>", secret), kind: provider.ErrPullFailed, texts: []string{"did not take the credentials"}},
		{name: "unknown to the helper", config: helper, helper: notFound, kind: provider.ErrPullFailed, texts: []string{"docker login " + reg.host}},
		{name: "helper is missing", config: helper, kind: provider.ErrPullFailed, texts: []string{"docker-credential-capyruntest", "config.json", "not found in $PATH"}},
		{name: "helper fails", config: store, helper: "echo the keyring is locked; exit 1", kind: provider.ErrPullFailed, texts: []string{"docker-credential-capyruntest", "the keyring is locked"}},
		{name: "helper tells all and fails", config: store, helper: answer(user, secret) + "; exit 1", kind: provider.ErrPullFailed, texts: []string{"docker-credential-capyruntest"}},
		{name: "helper talks nonsense", config: store, helper: "echo " + secret, kind: provider.ErrPullFailed, texts: []string{"docker-credential-capyruntest"}},
		{name: "broken file", config: `{"auths":{"` + reg.host + `":{"auth":"` + encoded + `"`, kind: provider.ErrPullFailed, texts: []string{"config.json"}},
		{name: "broken entry", config: auths(reg.host, "!"+encoded), kind: provider.ErrPullFailed, texts: []string{"config.json"}},
		{name: "broken environment", env: "{" + encoded, kind: provider.ErrPullFailed, texts: []string{"DOCKER_AUTH_CONFIG"}},

		// What the pull does not need is only warned of.
		{name: "public image, helper is missing", guard: func(http.ResponseWriter, *http.Request) bool { return false }, config: helper, texts: []string{"docker-credential-capyruntest"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("DOCKER_CONFIG", dir)
			t.Setenv("DOCKER_AUTH_CONFIG", c.env)
			if c.config != "" {
				if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(c.config), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if c.helper != "" {
				if err := os.WriteFile(filepath.Join(dir, "docker-credential-capyruntest"), []byte("#!/bin/sh\n"+c.helper+"\n"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
			reg.setGuard(c.guard)
			if c.guard == nil {
				reg.setGuard(basicAuth(user, secret))
			}
			ref, _ := reg.push(t, "private:"+strings.NewReplacer(" ", "-", ",", "").Replace(c.name), unique(), arch(t))
			p := newProvider(t, docker.Config{})
			ctx, events := watch(t.Context())
			sandbox := provider.GenerateName()
			sb, err := p.Create(ctx, provider.Spec{Name: sandbox, Image: ref})
			said := fmt.Sprint(err)
			if err == nil {
				t.Cleanup(func() { sb.Destroy(context.Background()) })
				c, err := engine(t).ContainerInspect(t.Context(), sandbox)
				if err != nil {
					t.Fatal(err)
				}
				if dump := fmt.Sprintf("%+v %+v", c.Config, c.HostConfig); strings.Contains(dump, secret) || strings.Contains(dump, encoded) {
					t.Error("the credentials are in the container's settings")
				}
			}
			for _, e := range events() {
				said += "\n" + e.Text + e.Error + fmt.Sprint(e.Attrs)
			}
			if (c.kind == "") != (err == nil) || err != nil && !errors.Is(err, c.kind) {
				t.Errorf("got %v, want kind %q", err, c.kind)
			}
			for _, text := range c.texts {
				if !strings.Contains(said, text) {
					t.Errorf("%q is not in: %s", text, said)
				}
			}
			for _, bad := range []string{secret, encoded, wrong} {
				if strings.Contains(said, bad) {
					t.Errorf("a credential was printed: %s", said)
				}
			}
			t.Log(err)
		})
	}
}

// An image that is there needs no configuration, whatever is in it.
func TestBrokenDockerConfig(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", dir)
	ctx, events := watch(t.Context())
	sb, err := newProvider(t, docker.Config{}).Create(ctx, provider.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	defer sb.Destroy(context.Background())
	for _, e := range events() {
		if e.Type == event.Log {
			t.Errorf("unexpected: %s", e.Text)
		}
	}
}

func TestDoctorRegistries(t *testing.T) {
	for _, c := range []struct {
		config string
		status docker.CheckStatus
		text   string
	}{
		{"", docker.CheckOK, "no credentials"},
		{`{"auths":{"example.com":{"auth":"dTpw"}}}`, docker.CheckOK, "config.json"},
		{`{"credsStore":"sh","credHelpers":{"example.com":"capyrun-nowhere"}}`, docker.CheckWarn, "docker-credential-capyrun-nowhere"},
		{`{"credsStore":"capyrun-nowhere"}`, docker.CheckWarn, "docker-credential-capyrun-nowhere"},
		{`{"auths":{"example.com":{"auth":"dTpw"`, docker.CheckWarn, "config.json"},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(c.config), 0o600); err != nil {
			t.Fatal(err)
		}
		t.Setenv("DOCKER_CONFIG", dir)
		found := false
		// A runtime that is not there spares the sandbox that the last check makes.
		for _, check := range newProvider(t, docker.Config{Runtime: "capyrun-nowhere"}).Doctor(t.Context()) {
			if check.Name != "registries" {
				continue
			}
			found = true
			if check.Status != c.status || !strings.Contains(check.Detail, c.text) || (check.Fix != "") != (c.status != docker.CheckOK) || strings.Contains(check.Detail, "dTpw") {
				t.Errorf("%s: %+v", c.config, check)
			}
		}
		if !found {
			t.Errorf("%s: there is no such check", c.config)
		}
	}
}
