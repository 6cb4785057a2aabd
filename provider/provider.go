// Package provider says what a sandbox provider is: the operations, what they
// take and return, how they fail, and which inputs they refuse.
//
// A provider turns a [Spec] into an isolated [Sandbox] in which untrusted
// commands run. The package holds no implementation and imports the standard
// library alone, so that scripts, tests and tools can speak of sandboxes
// without linking an engine. Package providertest checks an implementation
// against what is written here.
package provider

import (
	"context"
	"io"
	"net"
)

// Provider creates sandboxes and finds them again. All methods are safe to
// call at once from many goroutines.
//
// Cancelling the context of a call stops the work first and then returns an
// error that wraps [context.Cause]; nothing that the call began is left behind.
type Provider interface {
	// Create makes a sandbox and returns when it takes commands. It fails with
	// [ErrExists] where the name is taken by a sandbox of ours and spec.Replace
	// is false, with [ErrNotOurs] where it is taken by anything else. On every
	// failure all that was created is removed again.
	Create(ctx context.Context, spec Spec) (Sandbox, error)

	// Open finds an existing sandbox by name, whoever created it. It fails with
	// [ErrGone] where there is none and [ErrNotOurs] where a stranger has the
	// name. A suspended sandbox is opened as it is; the first operation on it
	// resumes it.
	Open(ctx context.Context, name string) (Sandbox, error)

	// List returns every sandbox of ours on the engine, by name.
	List(ctx context.Context) ([]Info, error)

	// Destroy removes the sandbox and everything that belongs to it. Missing
	// parts are fine, so it is safe to call twice, at once, and on what a failed
	// create left. It fails with [ErrGone] where nothing at all was found, and
	// with [ErrNotOurs] where a stranger has the name.
	Destroy(ctx context.Context, name string) error

	// Sweep removes everything of ours whose owner is dead or whose time to live
	// has passed. It never touches what a live owner holds or what is kept.
	Sweep(ctx context.Context) (SweepReport, error)

	// Close ends the provider's sessions and waits for its background work. It
	// destroys no sandbox.
	Close() error
}

// Sandbox is one isolated machine. All methods are safe to call at once. Every
// operation on a suspended or paused sandbox resumes it first.
type Sandbox interface {
	// Name is the sandbox's name, unique on its engine.
	Name() string

	// Info asks the engine for the sandbox's present state.
	Info(ctx context.Context) (Info, error)

	// Exec runs a command and returns when it has ended and its output is
	// drained. A non-zero exit, a signal and a timeout are results, not errors.
	// [ErrNotStarted] means that no process ran. When ctx is cancelled the
	// command's whole process tree is dead before Exec returns, and the result
	// holds what was printed until then, beside the error.
	Exec(ctx context.Context, cmd Command) (*Result, error)

	// Start runs a command in the background. The process outlives the call and
	// the session, ends with the sandbox, and is found again by [Sandbox.Process].
	Start(ctx context.Context, cmd Command) (Process, error)

	// Process finds a background process by id or, failing that, the most
	// recently started one with that tag. It fails with [ErrGone].
	Process(ctx context.Context, idOrTag string) (Process, error)

	// Processes lists the commands that the sandbox runs, whichever runner
	// started them, and the background ones that have ended.
	Processes(ctx context.Context) ([]ProcessInfo, error)

	// Kill ends every command with one of the tags, whichever runner started it,
	// with all its descendants, and returns how many commands that were. They
	// are dead when it returns.
	Kill(ctx context.Context, tags ...string) (int, error)

	// KillAll ends every process in the sandbox, also a fork bomb, and returns
	// how many commands that were.
	KillAll(ctx context.Context) (int, error)

	FileSystem

	// Dial opens a connection to a server inside the sandbox: network is "tcp"
	// (address host:port, an empty host is the loopback) or "unix" (address is a
	// path). It needs no network: the bytes travel through the session. The
	// connection has CloseWrite for half-close and outlives ctx. Where no server
	// listens the error matches [syscall.ECONNREFUSED].
	Dial(ctx context.Context, network, address string) (net.Conn, error)

	// Suspend stops every process within five seconds and keeps the files of
	// /workspace and /skills. /tmp is emptied.
	Suspend(ctx context.Context) error

	// Resume starts a suspended sandbox again; it does nothing to a running one.
	// It fails with [ErrGone] where the sandbox no longer exists.
	Resume(ctx context.Context) error

	// Destroy removes the sandbox, see [Provider.Destroy].
	Destroy(ctx context.Context) error

	// Stats returns what the sandbox uses now and has used at most.
	Stats(ctx context.Context) (Stats, error)
}

// FileSystem is the file part of a [Sandbox]. Paths are slash-separated,
// absolute or relative to /workspace. Reads go wherever uid 1000 may read;
// everything that changes a file must stay in /workspace, /tmp or /skills,
// also through symbolic links. See [CleanPath] and [CleanWritePath].
//
// Failures match [io/fs.ErrNotExist], [io/fs.ErrExist], [io/fs.ErrPermission],
// [ErrIsDirectory], [ErrNotDirectory] and [ErrNoSpace].
type FileSystem interface {
	// ReadFile returns up to opts.Max bytes of a file.
	ReadFile(ctx context.Context, path string, opts ReadOptions) (*FileData, error)

	// OpenFile streams a file, or a range of it, without holding it in memory.
	OpenFile(ctx context.Context, path string, opts ReadOptions) (io.ReadCloser, error)

	// WriteFile writes all of data to a file, whatever its size, without holding
	// it in memory. Parents are created. A regular or missing target is replaced
	// atomically: readers see the old content or the new, and a failed or
	// cancelled write leaves the old.
	WriteFile(ctx context.Context, path string, data io.Reader, opts WriteOptions) error

	// Stat describes a file, following links.
	Stat(ctx context.Context, path string) (*FileInfo, error)

	// ReadDir lists a directory by name, without following links in it; with
	// recursive all that is below it, parents first, paths relative to it. A
	// directory below it that may not be read is listed without its content. It
	// fails where a path below it is too long to be read.
	ReadDir(ctx context.Context, path string, recursive bool) ([]FileInfo, error)

	// Glob returns the paths that match a pattern, sorted: *, ? and [...] within
	// a path element, ** for any number of directories. They are written as the
	// pattern is: relative to /workspace where it is. No match is no error, and a
	// directory that may not be read has none. It fails where a path on the way is
	// too long to be read.
	Glob(ctx context.Context, pattern string) ([]string, error)

	// Mkdir makes a directory and its parents; an existing directory is fine.
	Mkdir(ctx context.Context, path string) error

	// Remove removes a file or a whole directory. Removing what is missing fails
	// with [io/fs.ErrNotExist].
	Remove(ctx context.Context, path string) error

	// Rename moves a file or directory within the writable places, replacing a
	// file of that name.
	Rename(ctx context.Context, from, to string) error

	// Upload unpacks a tar stream into the directory path, making it where it is
	// missing. Links are kept, the owner is uid 1000, and an entry that would
	// leave the directory fails the call.
	Upload(ctx context.Context, path string, tar io.Reader) error

	// Download writes the file or directory at path to w as a tar stream with
	// paths relative to it; a single file is one entry of its base name. The
	// stream comes from the sandbox: unpack it with package tartree.
	Download(ctx context.Context, path string, w io.Writer) error
}

// Process is a background command. Its methods are safe to call at once, and
// go on working when the session is lost and made anew.
type Process interface {
	// ID names the process within its sandbox; ids are never used again.
	ID() string
	// PID is the process id inside the sandbox.
	PID() int
	// Info returns its present state.
	Info(ctx context.Context) (ProcessInfo, error)
	// Wait returns when the process has ended. Cancelling ctx ends the waiting
	// and leaves the process.
	Wait(ctx context.Context) (*Result, error)
	// Signal sends a signal ("TERM", "SIGINT", "9") to the process group; KILL
	// ends all its descendants and returns when they are dead.
	Signal(ctx context.Context, signal string) error
	// Write writes to the process's standard input and returns when it is
	// accepted.
	Write(ctx context.Context, data []byte) error
	// CloseStdin ends its standard input.
	CloseStdin(ctx context.Context) error
	// Output returns what is kept of its output so far.
	Output(ctx context.Context) (*Output, error)
	// Follow gives onOutput what is kept of the output and then all that comes, in
	// the order in which the process printed it, and returns how the process ended,
	// without the output. onOutput is called by one goroutine at a time, and data
	// is valid only during the call. A slow one does not slow the process down: it
	// misses what [Command.MaxOutput] has dropped meanwhile, and Truncated says
	// so. Cancelling ctx ends the following and leaves the process.
	Follow(ctx context.Context, onOutput func(stream Stream, data []byte)) (*Result, error)
}
