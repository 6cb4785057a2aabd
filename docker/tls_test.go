package docker_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/provider"
)

// authority is a certificate authority.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "capyrun test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.cert = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key))))
	return a
}

// issue makes a certificate for a server or a client on this machine.
func (a *authority) issue() (cert, key []byte) {
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, KeyUsage: x509.KeyUsageDigitalSignature}
	der := must(x509.CreateCertificate(rand.Reader, template, a.cert, &k.PublicKey, a.key))
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(k))})
}

// certPath writes what DOCKER_CERT_PATH holds: the authority that a client
// trusts, and its own certificate by another.
func certPath(t *testing.T, trusts, by *authority) string {
	t.Helper()
	dir := t.TempDir()
	cert, key := by.issue()
	for name, data := range map[string][]byte{
		"ca.pem":   pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusts.cert.Raw}),
		"cert.pem": cert,
		"key.pem":  key,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// tlsEngine is the tests' engine behind TLS that wants a client's certificate.
// Bytes are handed on as they are, since sessions are not HTTP.
func tlsEngine(t *testing.T, a *authority, address string) string {
	t.Helper()
	cert, key := a.issue()
	pair := must(tls.X509KeyPair(cert, key))
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	l, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	u, err := url.Parse(testenv.Endpoint())
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer client.Close()
				if client.(*tls.Conn).Handshake() != nil {
					return
				}
				engine, err := net.Dial(u.Scheme, u.Host+u.Path)
				if err != nil {
					t.Error(err)
					return
				}
				defer engine.Close()
				go func() {
					io.Copy(engine, client)
					engine.(interface{ CloseWrite() error }).CloseWrite()
				}()
				io.Copy(client, engine)
			}()
		}
	}()
	return "tcp://" + l.Addr().String()
}

// answering is a server that gives every connection the same answer.
func answering(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Read(make([]byte, 4096)) // a close with unread bytes would be a reset
			io.WriteString(conn, answer)
			conn.Close()
		}
	}()
	return "tcp://" + l.Addr().String()
}

// TestTLS sets the environment, so it runs alone.
func TestTLS(t *testing.T) {
	testenv.Engine(t)
	ours, strangers := newAuthority(t), newAuthority(t)
	endpoint := tlsEngine(t, ours, "127.0.0.1:0")
	good := certPath(t, ours, ours)
	broken := t.TempDir()
	noClient := certPath(t, ours, ours)
	for _, file := range []string{"cert.pem", "key.pem"} {
		if err := os.Remove(filepath.Join(noClient, file)); err != nil {
			t.Fatal(err)
		}
	}
	plain := answering(t, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
	// What an engine with TLS says to a client without.
	secured := answering(t, "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n")

	for _, c := range []struct {
		name     string
		endpoint string
		verify   string // DOCKER_TLS_VERIFY
		certs    string // DOCKER_CERT_PATH
		config   string // DOCKER_CONFIG
		kind     provider.Kind
	}{
		{name: "right", endpoint: endpoint, verify: "1", certs: good},
		{name: "right, in the configuration's directory", endpoint: endpoint, verify: "1", config: good},
		{name: "server not verified", endpoint: endpoint, certs: certPath(t, strangers, ours)},
		{name: "unix socket", endpoint: testenv.Endpoint(), verify: "1", certs: good},
		{name: "another authority", endpoint: endpoint, verify: "1", certs: certPath(t, strangers, ours), kind: provider.ErrUnreachable},
		{name: "a stranger's certificate", endpoint: endpoint, verify: "1", certs: certPath(t, ours, strangers), kind: provider.ErrUnreachable},
		{name: "plain", endpoint: secured, kind: provider.ErrUnreachable},
		{name: "plain, and it hangs up", endpoint: endpoint, kind: provider.ErrUnreachable},
		{name: "TLS to a plain server", endpoint: plain, verify: "1", certs: good, kind: provider.ErrUnreachable},
		{name: "no files", endpoint: endpoint, verify: "1", certs: broken, kind: provider.ErrInvalid},
		{name: "no certificate of the client", endpoint: endpoint, verify: "1", certs: noClient, kind: provider.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("DOCKER_TLS_VERIFY", c.verify)
			t.Setenv("DOCKER_CERT_PATH", c.certs)
			t.Setenv("DOCKER_CONFIG", c.config)
			p, err := docker.New(t.Context(), docker.Config{Endpoint: c.endpoint})
			if err == nil {
				p.Close()
			}
			switch {
			case c.kind == "" && err != nil:
				t.Error(err)
			case c.kind != "" && !errors.Is(err, c.kind):
				t.Errorf("got %v, want kind %q", err, c.kind)
			case c.kind == provider.ErrUnreachable && !strings.Contains(err.Error(), "DOCKER_CERT_PATH"):
				t.Errorf("the error has no hint: %v", err)
			case c.kind == provider.ErrInvalid && !strings.Contains(err.Error(), c.certs):
				t.Errorf("the error does not say where: %v", err)
			}
			t.Log(err)
		})
	}

	t.Run("everything through it", func(t *testing.T) {
		address := "[::1]:0"
		if l, err := net.Listen("tcp", address); err != nil { // no IPv6 on this machine
			address = "127.0.0.1:0"
		} else {
			l.Close()
		}
		t.Setenv("DOCKER_TLS_VERIFY", "1")
		t.Setenv("DOCKER_CERT_PATH", good)
		p := newProvider(t, docker.Config{Endpoint: tlsEngine(t, ours, address)})
		sb := create(t, p, provider.Spec{})
		data := strings.Repeat("0123456789", 1<<18)
		if err := sb.WriteFile(t.Context(), "f", strings.NewReader(data), provider.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		r, err := sb.Exec(t.Context(), provider.Command{Shell: "cat f -", Stdin: strings.NewReader("and stdin"), MaxOutput: 8 << 20})
		if err != nil || string(r.Stdout) != data+"and stdin" {
			t.Errorf("%d bytes came back, %v", len(r.Stdout), err)
		}
		if err := sb.Suspend(t.Context()); err != nil { // the next session is opened by an exec
			t.Fatal(err)
		}
		if got := run(t, sb, "wc -c < f"); strings.TrimSpace(got) != fmt.Sprint(len(data)) {
			t.Errorf("after suspend: %q", got)
		}
	})
}
