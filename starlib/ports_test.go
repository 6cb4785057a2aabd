package starlib_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

// testServer is what listens on port 8080 of the sandboxes.
func testServer(t *testing.T, fake *starlibtest.Fake) {
	mux := http.NewServeMux()
	mux.HandleFunc("/echo", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Add("Set-Cookie", "a=1")
		w.Header().Add("Set-Cookie", "b=2")
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%s %s host=%s type=%s x=%s body=%s", r.Method, r.URL, r.Host, r.Header.Get("Content-Type"), r.Header.Values("X"), body)
	})
	mux.HandleFunc("/bytes", func(w http.ResponseWriter, r *http.Request) { w.Write([]byte{0xff, 0, 'x'}) })
	mux.Handle("/away", http.RedirectHandler("http://203.0.113.1/", http.StatusFound))
	mux.HandleFunc("/endless", func(w http.ResponseWriter, r *http.Request) {
		for buf := make([]byte, 64<<10); ; {
			if _, err := w.Write(buf); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("/slow", func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	fake.Serve(8080, srv.Listener.Addr().String())
}

func TestHTTP(t *testing.T) {
	fake := starlibtestNew(t)
	testServer(t, fake)
	_, err := starlib.New(fake, starlib.Options{}).RunSource(t.Context(), "main.star", []byte(`
def main():
    sb = sandbox.create()
    sb.wait_port(8080)
    r = sb.http("get", 8080, "/echo?a=b")
    assert.eq((r.status, r.ok, r.truncated), (201, True, False))
    assert.eq(r.body, "GET /echo?a=b host=localhost:8080 type= x=[] body=")
    assert.matches(str(r), "^<http.response: 201 Created, \\d+ bytes>$")

    # Headers, without regard to case, also several of one name.
    h = r.headers
    assert.eq(h["content-TYPE"], "text/plain")
    assert.true("set-cookie" in h)
    assert.eq(h["Set-Cookie"], "a=1, b=2")
    assert.eq(h.all("set-cookie"), ["a=1", "b=2"])
    assert.eq(h.all("x"), [])
    assert.eq(h.get("x"), None)
    assert.eq(h.get("x", "none"), "none")
    assert.false("x" in h)
    assert.contains(dict(h), "Set-Cookie")
    assert.eq(json.decode(json.encode(r))["headers"]["Content-Type"], "text/plain")

    # What is sent.
    r = sb.http("POST", 8080, "/echo", headers = {"x": ["1", "2"], "Host": "example.com"}, body = "text")
    assert.eq(r.body, "POST /echo host=example.com type= x=[1 2] body=text")
    r = sb.http("PUT", 8080, "/echo", body = {"a": [1, None]})
    assert.contains(r.body, "type=application/json")
    assert.eq(json.decode(r.body.partition("body=")[2]), {"a": [1, None]})
    r = sb.http("PUT", 8080, "/echo", headers = {"content-type": "x/y"}, body = [1])
    assert.contains(r.body, "type=x/y")

    # What comes back.
    assert.eq(sb.http("GET", 8080, "/bytes").body_bytes, b"\xff\x00x")
    missing = sb.http("GET", 8080, "/missing")
    assert.eq((missing.status, missing.ok), (404, False))
    away = sb.http("GET", 8080, "/away")
    assert.eq((away.status, away.headers["location"]), (302, "http://203.0.113.1/"))
    r = sb.http("GET", 8080, "/endless", max_bytes = 10)
    assert.eq((len(r.body), r.truncated), (10, True))
    _, error = flow.attempt(sb.http, "GET", 8080, "/endless")
    assert.contains(error.message, "more than the 16777216 bytes")
    _, error = flow.attempt(sb.http, "GET", 8080, "/slow", timeout = "50ms")
    assert.eq(error.kind, "timed out")
    assert.contains(error.message, "timed out after 50ms")
    _, error = flow.attempt(sb.http, "GET", 8081)
    assert.eq(error.kind, "connection refused")
    return r
`), nil)
	if err != nil {
		t.Fatal(rendered(err.(*starlib.Error)))
	}
}

func TestHTTPIsCancelled(t *testing.T) {
	fake := starlibtestNew(t)
	testServer(t, fake)
	for _, call := range []string{`sb.http("GET", 8080, "/slow", timeout = "1h")`, `sb.wait_port(1, timeout = "1h")`} {
		ctx, cancel := context.WithCancel(t.Context())
		_, err := starlib.New(fake, starlib.Options{Print: func(string) { time.AfterFunc(20*time.Millisecond, cancel) }}).
			RunSource(ctx, "main.star", []byte("sb = sandbox.create()\nprint()\n"+call), nil)
		wantKind(t, err, starlib.KindCanceled)
	}
}

// TestForward: the address serves until the sandbox or the run ends.
func TestForward(t *testing.T) {
	fake := starlibtestNew(t)
	testServer(t, fake)
	addresses := map[string]string{}
	get := func(name string) error {
		resp, err := http.Get("http://" + addresses[name] + "/bytes")
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	var warned []string
	_, err := starlib.New(fake, starlib.Options{
		Print: func(line string) {
			name, address, ok := strings.Cut(line, " ")
			if ok {
				addresses[name] = address
				if err := get(name); name != "unserved" && err != nil {
					t.Error(err)
				}
				return
			}
			if err := get(name); err == nil {
				t.Errorf("%s still serves", name)
			}
		},
		Events: event.Func(func(e event.Event) {
			if e.Level == event.Warning {
				warned = append(warned, e.Text)
			}
		}),
	}).RunSource(t.Context(), "main.star", []byte(`
def main():
    a, b = sandbox.create(name = "a"), sandbox.create(name = "b", keep = True)
    for sb in [a, b]:
        address = sb.forward(8080)
        assert.matches(address, r"^127\.0\.0\.1:\d+$")
        print(sb.name, address)
    print("unserved", a.forward(8081))
    a.destroy()
    print("a")
    flow.defer(lambda: print("b", b.forward(8080)))
`), nil)
	if err != nil {
		t.Fatal(rendered(err.(*starlib.Error)))
	}
	if err := get("b"); err == nil {
		t.Error("b is still served after the run")
	}
	if len(warned) == 0 || warned[0] != "sandbox.forward: sandbox a: no server listens on port 8081" {
		t.Errorf("warnings: %q", warned)
	}
}

func TestForwardToAPort(t *testing.T) {
	fake := starlibtestNew(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	taken := l.Addr().(*net.TCPAddr).Port
	_, err = starlib.New(fake, starlib.Options{}).RunSource(t.Context(), "main.star", fmt.Appendf(nil, "sandbox.create().forward(80, host_port = %d)", taken), nil)
	if e := wantKind(t, err, starlib.KindScript); !strings.Contains(e.Msg, "address already in use") {
		t.Error(e.Msg)
	}
}
