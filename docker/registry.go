package docker

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/docker/cli/cli/config"
	"github.com/docker/cli/cli/config/configfile"
	filestore "github.com/docker/cli/cli/config/credentials"
	"github.com/docker/cli/cli/config/types"
	helperclient "github.com/docker/docker-credential-helpers/client"
	"github.com/docker/docker-credential-helpers/credentials"
	"github.com/docker/docker/api/types/registry"
)

// registryAuth returns what a pull shows to the registry of a domain, as the
// engine's API takes it: empty where the user has no credentials for it. They
// are found as `docker pull` finds them: in DOCKER_AUTH_CONFIG, else by the
// credential helper that the Docker configuration names, else in that file.
// No error has a credential in its text.
func registryAuth(ctx context.Context, domain string) (string, error) {
	auth, err := findAuth(ctx, registryKey(domain))
	if err != nil || auth.Username == "" && auth.Password == "" && auth.IdentityToken == "" && auth.RegistryToken == "" {
		return "", err
	}
	return registry.EncodeAuthConfig(registry.AuthConfig{
		Username:      auth.Username,
		Password:      auth.Password,
		IdentityToken: auth.IdentityToken,
		RegistryToken: auth.RegistryToken,
		ServerAddress: auth.ServerAddress,
	})
}

// registryKey is the name under which a registry's credentials are kept. That
// of Docker Hub is older than the naming by domains.
func registryKey(domain string) string {
	if domain == "docker.io" {
		return "https://index.docker.io/v1/"
	}
	return domain
}

func findAuth(ctx context.Context, key string) (types.AuthConfig, error) {
	if env := os.Getenv(configfile.DockerEnvConfigKey); env != "" {
		fromEnv := configfile.New("")
		if err := fromEnv.LoadFromReader(strings.NewReader(env)); err != nil {
			return types.AuthConfig{}, fmt.Errorf("%s: %w", configfile.DockerEnvConfigKey, err)
		}
		if auth, err := filestore.NewFileStore(fromEnv).Get(key); err != nil || auth.ServerAddress != "" {
			return auth, err
		}
	}
	file, err := dockerConfig()
	if err != nil {
		return types.AuthConfig{}, err
	}
	if name := credentialHelper(file, key); name != "" {
		return askHelper(ctx, name, key, file.Filename)
	}
	return filestore.NewFileStore(file).Get(key)
}

// dockerConfig reads the Docker configuration; a missing file is an empty one.
func dockerConfig() (*configfile.ConfigFile, error) {
	dir := dockerConfigDir()
	if dir == "" { // which the library would take for its own default
		return configfile.New(""), nil
	}
	return config.Load(dir)
}

// dockerConfigDir is the directory of the Docker configuration, empty for a
// user without a home. The library's own search for it is done once in a
// process, and a program that embeds this one may change DOCKER_CONFIG.
func dockerConfigDir() string {
	if dir := os.Getenv(config.EnvOverrideConfigDir); dir != "" {
		return dir
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return ""
	}
	return filepath.Join(home, ".docker")
}

// credentialHelper returns the program that keeps a registry's credentials,
// empty where the file itself does.
func credentialHelper(file *configfile.ConfigFile, key string) string {
	name, ok := file.CredentialHelpers[key]
	if !ok {
		name = file.CredentialsStore
	}
	if name == "" {
		return ""
	}
	return "docker-credential-" + name
}

// askHelper gets credentials from a helper program, which ends with ctx.
func askHelper(ctx context.Context, name, key, file string) (types.AuthConfig, error) {
	fail := func(err error) (types.AuthConfig, error) {
		return types.AuthConfig{}, fmt.Errorf("the credential helper %s, which %s names: %w", name, file, err)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return fail(err)
	}
	found, err := helperclient.Get(func(args ...string) helperclient.Program {
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.WaitDelay = time.Second // for a child of the helper that keeps its output open
		return helperProgram{cmd}
	}, key)
	switch {
	case canceled(ctx) != nil:
		return fail(canceled(ctx))
	case credentials.IsErrCredentialsNotFound(err):
		return types.AuthConfig{}, nil
	case err != nil:
		return fail(err)
	}
	auth := types.AuthConfig{ServerAddress: key, Username: found.Username, Password: found.Secret}
	if found.Username == "<token>" { // the protocol's way to say it
		auth.Username, auth.Password, auth.IdentityToken = "", "", found.Secret
	}
	return auth, nil
}

// helperProgram is a run of a credential helper.
type helperProgram struct{ cmd *exec.Cmd }

func (p helperProgram) Input(in io.Reader) { p.cmd.Stdin = in }

// Output is what the helper printed. Where it fails that is its message, and
// goes into the error, unless it is the credentials after all.
func (p helperProgram) Output() ([]byte, error) {
	out, err := p.cmd.Output()
	if err != nil && bytes.ContainsRune(out, '{') {
		out = nil
	}
	return out, err
}
