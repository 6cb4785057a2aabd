package ports

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/capybara-hq/capyrun/provider"
)

// maxHeader bounds the header of an answer, in bytes. It comes from the sandbox.
const maxHeader = 1 << 20

// NewRequest makes a request to the server on a port of a sandbox. The path may
// have a query. A body of bytes or text has a known length; others are sent in
// chunks.
func NewRequest(ctx context.Context, method string, port int, path string, body io.Reader) (*http.Request, error) {
	if err := Check(port); err != nil {
		return nil, err
	}
	if !strings.HasPrefix(path, "/") {
		return nil, &provider.InvalidError{Field: "path", Value: path, Reason: `must begin with "/"`}
	}
	req, err := http.NewRequestWithContext(ctx, strings.ToUpper(method), "http://localhost:"+strconv.Itoa(port)+path, body)
	var bad *url.Error
	switch {
	case errors.As(err, &bad):
		return nil, &provider.InvalidError{Field: "path", Value: path, Reason: bad.Err.Error()}
	case err != nil:
		return nil, &provider.InvalidError{Field: "method", Value: method, Reason: "is no HTTP method"}
	}
	req.URL.RawQuery = strings.ReplaceAll(req.URL.RawQuery, " ", "%20") // as url.Parse does for the path
	req.Header.Set("User-Agent", "capyrun")
	return req, nil
}

// Do sends a request of [NewRequest] to the sandbox and returns the answer,
// whatever its status is. Redirects are not followed: they may lead elsewhere.
// The request's context bounds the reading of the body as well, which has to be
// closed and is as the server sent it, compressed or not.
func Do(sb Sandbox, req *http.Request) (*http.Response, error) {
	port, err := strconv.Atoi(req.URL.Port())
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", req.URL.Port(), err)
	}
	// Dialled here and not by the transport, which would leave a dial behind that
	// goes on after the request was cancelled.
	conn, err := Dial(req.Context(), sb, port)
	if err != nil {
		return nil, err
	}
	// Not left to the transport either: it minds the context no more once a
	// server has switched protocols.
	stop := context.AfterFunc(req.Context(), func() { conn.Close() })
	transport := &http.Transport{
		DialContext:            func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives:      true,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxHeader,
	}
	resp, err := transport.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusSwitchingProtocols {
		err = errors.New("the server switches to another protocol")
	}
	if err != nil {
		stop()
		conn.Close()
		if cause := context.Cause(req.Context()); cause != nil {
			err = cause
		}
		return nil, &provider.Error{Op: req.Method + " port " + req.URL.Port(), Sandbox: sb.Name(), Err: err}
	}
	resp.Body = &body{resp.Body, conn, req.Context(), stop}
	return resp, nil
}

// body closes the connection with the body, and tells why a read was cut.
type body struct {
	io.ReadCloser
	conn net.Conn
	ctx  context.Context
	stop func() bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		if cause := context.Cause(b.ctx); cause != nil {
			err = cause
		}
	}
	return n, err
}

func (b *body) Close() error {
	b.stop()
	b.conn.Close() // first: the transport would read on for a while
	b.ReadCloser.Close()
	return nil
}
