// Package agent is the program inside each sandbox and the client that speaks
// to it. SPEC.md describes the protocol between the two.
//
// A provider puts the agent's binary into a sandbox and runs it as the first
// process, see [InitArgs]. It then opens a [Session], which does all that a
// [provider.Sandbox] does within a running sandbox: commands, processes, files
// and connections. How the bytes get in and out is the provider's: by an
// engine's attach or exec, by a socket, by a pipe.
package agent

import (
	"strconv"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
)

// Mount is where a provider mounts the agent, read-only, in a sandbox.
const Mount = "/opt/capyrun"

// Path is the agent's binary in a sandbox.
const Path = Mount + "/capyrun"

// MarkVariable is in the environment of everything that runs in a sandbox. Its
// value names the command that a process belongs to.
const MarkVariable = wire.MarkVariable

// Exit codes of the first process.
const (
	// ExitTerminated: it was told to end, by SIGTERM or SIGINT.
	ExitTerminated = 143
	// ExitOwnerLost: no session was there for the grace time.
	ExitOwnerLost = 75
	// ExitExpired: the sandbox's time to live has passed.
	ExitExpired = 76
)

// InitOptions say when a sandbox ends by itself.
type InitOptions struct {
	// Grace is how long the sandbox goes on without a session. 0: 30 s.
	Grace time.Duration
	// Keep lets it go on without a session for ever, or until Expires.
	Keep bool
	// Expires is when it ends in any case; until then it goes on without a
	// session. Zero: never.
	Expires time.Time
}

// InitArgs is the command line of a sandbox's first process. It runs as uid
// 1000 and speaks a session over its standard input and output; other sessions
// come through [ConnectArgs]. On SIGTERM it ends at once, with everything in
// the sandbox.
func InitArgs(o InitOptions) []string {
	args := []string{Path, "agent", "init"}
	if o.Grace > 0 {
		args = append(args, "--grace", o.Grace.String())
	}
	if o.Keep {
		args = append(args, "--keep")
	}
	if !o.Expires.IsZero() {
		args = append(args, "--expires", strconv.FormatInt(o.Expires.UnixMilli(), 10))
	}
	return args
}

// ConnectArgs is the command line that opens a session to a sandbox's first
// process over its own standard input and output. It must run inside the
// sandbox as uid 0, which no command of the sandbox can become.
func ConnectArgs() []string { return []string{Path, "agent", "connect"} }

// FilesArgs is the command line of a server over standard input and output that
// does nothing but change files under /skills, which are in root. It runs inside
// the sandbox as uid 0. root is the path of the mount of /skills that is
// writable, such as /opt/capybara/skills.
func FilesArgs(root string) []string {
	return []string{Path, "agent", "files", "--place", "/skills=" + root}
}
