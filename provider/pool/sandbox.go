package pool

import (
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/capybara-hq/capyrun/provider"
)

// sandbox is one with an environment that its container does not have.
type sandbox struct {
	provider.Sandbox
	pool *Provider
	env  map[string]string
}

// with adds the environment to a command. The command's own takes precedence.
func (s *sandbox) with(cmd provider.Command) provider.Command {
	env := maps.Clone(s.env)
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	return cmd
}

// Exec implements [provider.Sandbox].
func (s *sandbox) Exec(ctx context.Context, cmd provider.Command) (*provider.Result, error) {
	return s.Sandbox.Exec(ctx, s.with(cmd))
}

// Start implements [provider.Sandbox].
func (s *sandbox) Start(ctx context.Context, cmd provider.Command) (provider.Process, error) {
	return s.Sandbox.Start(ctx, s.with(cmd))
}

// Destroy implements [provider.Sandbox].
func (s *sandbox) Destroy(ctx context.Context) error {
	err := s.Sandbox.Destroy(ctx)
	if err == nil {
		s.pool.forget(s.Name())
	}
	return err
}

// kind is equal for specs whose sandboxes cannot be told apart.
func kind(s provider.Spec) string {
	s = s.WithDefaults()
	return fmt.Sprintf("%q %v %d %d %d %s %q", s.Image, s.CPU, s.Memory, s.Disk, s.PIDs, s.Egress, strings.Join(s.AllowHosts, " "))
}
