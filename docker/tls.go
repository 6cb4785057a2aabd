package docker

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/docker/docker/client"

	"github.com/capybara-hq/capyrun/provider"
)

// transportSecurity takes TLS from the usual Docker variables, as the docker
// command does: DOCKER_TLS_VERIFY switches it on, DOCKER_CERT_PATH is where
// ca.pem, cert.pem and key.pem are, the Docker configuration's directory unless
// it is set. DOCKER_CERT_PATH alone means TLS with a server that is not
// verified. A Unix socket has no TLS, whatever they say.
func transportSecurity(endpoint string) client.Opt {
	verify, dir := os.Getenv(client.EnvTLSVerify) != "", os.Getenv(client.EnvOverrideCertPath)
	if !strings.HasPrefix(endpoint, "tcp:") || !verify && dir == "" {
		return func(*client.Client) error { return nil }
	}
	if dir == "" {
		dir = dockerConfigDir()
	}
	load := client.WithTLSClientConfigFromEnv()
	if verify {
		load = client.WithTLSClientConfig(filepath.Join(dir, "ca.pem"), filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"))
	}
	return func(c *client.Client) error {
		if err := load(c); err != nil {
			return &provider.InvalidError{Field: client.EnvOverrideCertPath, Value: dir, Reason: err.Error()}
		}
		return nil
	}
}

// insecure reports whether a call failed because one side wants TLS, or another
// TLS, than the other. What an engine reports of a registry is not that.
func insecure(err error) bool {
	return client.IsErrConnectionFailed(err) && securityFailed.MatchString(err.Error()) ||
		strings.HasPrefix(trimmed{err}.Error(), "Client sent an HTTP request to an HTTPS server")
}

// An alert, of a server that is met without TLS, is for the client an odd HTTP
// response.
var securityFailed = regexp.MustCompile(`\btls: |\bx509: |HTTP response to HTTPS client|malformed HTTP response "\\x15|server probably has client authentication`)

const securityHint = "TLS: the engine and this client do not agree; DOCKER_TLS_VERIFY=1 switches it on, and DOCKER_CERT_PATH is a directory with the ca.pem, cert.pem and key.pem that the engine takes"

// unusedContext names the context of the docker command where its engine is
// another than the endpoint: nothing was said about the endpoint, and the docker
// command would take that context's.
func unusedContext(endpoint string) string {
	if endpoint != DefaultEndpoint || os.Getenv("DOCKER_HOST") != "" {
		return ""
	}
	name := os.Getenv("DOCKER_CONTEXT")
	if name == "" {
		if file, err := dockerConfig(); err == nil {
			name = file.CurrentContext
		}
	}
	if name == "default" {
		return ""
	}
	return name
}
