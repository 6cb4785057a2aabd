// Command capyrun runs Starlark workflows in Docker sandboxes. It is also the
// agent inside each sandbox ("capyrun agent").
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/capybara-hq/capyrun/agent"
)

func main() {
	agent.Main() // does not return where this is an agent
	// Without this, writing to a closed pipe would kill the process before it
	// has cleaned up.
	signal.Ignore(syscall.SIGPIPE)
	p := &program{stdin: os.Stdin, stdout: &output{w: os.Stdout}, stderr: os.Stderr, environ: os.Environ()}
	os.Exit(p.run(context.Background(), os.Args[1:]))
}
