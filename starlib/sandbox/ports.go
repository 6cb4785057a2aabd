package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/provider/ports"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// defaultPortTimeout bounds sb.http and sb.wait_port where the script does not:
// a server that answers at all does so sooner.
const defaultPortTimeout = script.Timeout(30 * time.Second)

// port unpacks the number of a TCP port.
type port int

// Unpack implements [starlark.Unpacker].
func (p *port) Unpack(v starlark.Value) error {
	n, err := starlark.AsInt32(v)
	if err != nil || ports.Check(n) != nil {
		return fmt.Errorf("%s: must be a whole number from 1 to 65535", script.Short(v))
	}
	*p = port(n)
	return nil
}

// sb.wait_port(port, timeout) returns when a server in the sandbox accepts
// connections on the TCP port. It fails with kind "timed out" when the timeout,
// 30 seconds by default, has passed.
func waitPort(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var n port
	timeout := defaultPortTimeout
	if err := script.Unpack(args, kwargs, "port", &n, "timeout??", &timeout); err != nil {
		return nil, err
	}
	return starlark.None, s.span(t, event.KindWait, fmt.Sprintf("wait for port %d", n), func(ctx context.Context) error {
		limited, cancel := within(ctx, time.Duration(timeout))
		defer cancel()
		err := ports.Wait(limited, s.sb, int(n))
		if err != nil && limited.Err() != nil && ctx.Err() == nil {
			err = &script.Failure{Kind: script.KindTimedOut, Msg: err.Error(), Err: err, Hint: ports.EndedHint(ctx, s.sb)}
		}
		return err
	})
}

// sb.forward(port, host_port) gives a TCP port of the sandbox an address on the
// host, "127.0.0.1:PORT", until the sandbox is destroyed or the run ends. Only
// the host itself can reach it. Without host_port a free one is taken.
func forward(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var from, to port
	if err := script.Unpack(args, kwargs, "port", &from, "host_port??", &to); err != nil {
		return nil, err
	}
	ctx := context.WithoutCancel(t.Ctx)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(int(to)))
	f, err := ports.Listen(s.sb, int(from), address, func(err error) {
		event.Warn(ctx, fmt.Sprintf("sandbox.forward: %v", err))
	})
	if err != nil {
		return nil, err
	}
	s.run.Hold(s.sb.Name(), f)
	return starlark.String(f.Addr().String()), nil
}

// sb.http(method, port, path, headers, body, timeout, max_bytes) sends a request
// to a server in the sandbox, which needs no network, and returns its answer:
//
//   - path: "/" by default, with the query if there is one
//   - headers: a dict; the value is a string, or a list to send a header
//     several times
//   - body: a string or bytes; anything else is sent as JSON
//   - timeout: for the whole of it, 30 seconds by default
//   - max_bytes: how much of the answer's body is returned at most; without it
//     a body of more than 16 MiB is an error
//
// The answer has .status, .ok (the status is 200 to 299), .headers, .body (a
// string; json.decode reads it), .body_bytes and .truncated. .headers["name"]
// does not care about case and joins the values of a header that was sent
// several times by ", "; .headers.all("name") lists them, and
// .headers.get("name", default) takes a default.
//
// A status of 400 and more is no failure. Redirects are not followed: .status
// and .headers["Location"] tell. Where no server listens it fails with kind
// "connection refused"; sb.wait_port waits for one.
func httpRequest(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		method  string
		n       port
		path    = "/"
		header  httpHeader
		body    httpBody
		timeout = defaultPortTimeout
		max     script.Size
	)
	err := script.Unpack(args, kwargs, "method", &method, "port", &n, "path??", &path, "headers??", &header, "body??", &body,
		"timeout??", &timeout, "max_bytes??", &max)
	if err != nil {
		return nil, err
	}
	ctx, span := event.Begin(t.Ctx, event.Event{Kind: event.KindSandbox, Name: fmt.Sprintf("%s :%d%s", method, n, path), Sandbox: s.sb.Name()})
	limited, cancel := within(ctx, time.Duration(timeout))
	defer cancel()
	answer, err := ask(limited, s.sb, &question{method, int(n), path, header, body, int64(max)})
	var attrs map[string]any
	if answer != nil {
		attrs = map[string]any{"status": answer.status}
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		err = &script.Failure{Msg: err.Error(), Err: err, Hint: fmt.Sprintf("sandbox.wait_port(%d) waits for one", n)}
	}
	span.End(err, attrs)
	if err != nil {
		return nil, err
	}
	return answer.value(), nil
}

// httpHeader unpacks a dict of strings or lists of strings.
type httpHeader http.Header

// Unpack implements [starlark.Unpacker].
func (h *httpHeader) Unpack(v starlark.Value) error {
	dict, ok := v.(starlark.IterableMapping)
	if !ok {
		return fmt.Errorf("got %s, want a dict of strings", v.Type())
	}
	out := http.Header{}
	for _, item := range dict.Items() {
		name, ok := starlark.AsString(item[0])
		if !ok {
			return fmt.Errorf("key %s: got %s, want string", script.Short(item[0]), item[0].Type())
		}
		var values script.Strings
		if value, ok := starlark.AsString(item[1]); ok {
			values = script.Strings{value}
		} else if err := values.Unpack(item[1]); err != nil {
			return fmt.Errorf("value of %q: got %s, want a string or a list of strings", name, item[1].Type())
		}
		for _, value := range values {
			out.Add(name, value)
		}
	}
	*h = httpHeader(out)
	return nil
}

func (h httpHeader) set(req *http.Request) {
	for name, values := range h {
		if name == "Host" && len(values) > 0 {
			req.Host = values[0] // where package http looks for it
			continue
		}
		req.Header[name] = values
	}
}

// httpBody unpacks a string or bytes, or anything else as JSON.
type httpBody struct {
	data   []byte
	isJSON bool
}

// Unpack implements [starlark.Unpacker].
func (b *httpBody) Unpack(v starlark.Value) (err error) {
	var data script.Data
	if data.Unpack(v) == nil {
		b.data = data
		return nil
	}
	b.data, err = script.JSON("body", v)
	b.isJSON = true
	return err
}

// httpAnswer is a response whose body has been read.
type httpAnswer struct {
	status    int
	header    http.Header
	body      []byte
	truncated bool
}

// question is what sb.http is to send.
type question struct {
	method string
	port   int
	path   string
	header httpHeader
	body   httpBody
	max    int64 // of the answer's body; 0: the default, beyond which it is an error
}

// ask sends a question and reads the answer.
func ask(ctx context.Context, sb provider.Sandbox, q *question) (*httpAnswer, error) {
	req, err := ports.NewRequest(ctx, q.method, q.port, q.path, bytes.NewReader(q.body.data))
	if err != nil {
		return nil, err
	}
	q.header.set(req)
	if q.body.isJSON && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := ports.Do(sb, req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	limit := q.max
	if limit == 0 {
		limit = provider.DefaultMaxRead
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, limit+1))
	answer := &httpAnswer{status: resp.StatusCode, header: resp.Header, body: data}
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer's body: %w", err)
	case int64(len(data)) <= limit:
	case q.max == 0:
		return nil, fmt.Errorf("the answer's body is more than the %d bytes that are read without max_bytes", limit)
	default:
		answer.body, answer.truncated = data[:limit], true
	}
	return answer, nil
}

func (a *httpAnswer) value() *script.Record {
	return script.NewRecord("http.response", starlark.StringDict{
		"status":    starlark.MakeInt(a.status),
		"ok":        starlark.Bool(a.status >= 200 && a.status <= 299),
		"headers":   &headers{a.header},
		"body":      starlark.String(a.body),
		"truncated": starlark.Bool(a.truncated),
	}, func() string {
		return fmt.Sprintf("<http.response: %d %s, %d bytes>", a.status, http.StatusText(a.status), len(a.body))
	}).With(starlark.StringDict{"body_bytes": starlark.Bytes(a.body)})
}
