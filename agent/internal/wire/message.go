package wire

import (
	"io/fs"
	"time"

	"github.com/capybara-hq/capyrun/provider"
)

// MarkVariable is the environment variable that marks the processes of a
// command.
const MarkVariable = "CAPYRUN_EXEC"

// Op names an operation.
type Op string

const (
	OpPing     Op = "ping"
	OpCancel   Op = "cancel"   // Target: stop the operation of that number; Count 1 if it goes on
	OpExec     Op = "exec"     // Command; output frames; Result
	OpTerminal Op = "terminal" // as exec, on a pseudo-terminal; the stream takes no more requests
	OpStart    Op = "start"    // Command; Process
	OpFind     Op = "find"     // ID; Process
	OpList     Op = "list"     // items: []Process
	OpWait     Op = "wait"     // ID; output frames; Result
	OpOutput   Op = "output"   // ID; output frames; Truncated
	OpFollow   Op = "follow"   // ID; output frames; Result
	OpSignal   Op = "signal"   // ID, Signal
	OpInput    Op = "input"    // ID; data frames
	OpNoInput  Op = "noinput"  // ID
	OpKill     Op = "kill"     // Tags; Count
	OpKillAll  Op = "killall"  // Count
	OpRead     Op = "read"     // Path, Offset, Max; data frames; Size, Truncated
	OpWrite    Op = "write"    // Path, Mode, Append; data frames of the client
	OpStat     Op = "stat"     // Path; File
	OpReadDir  Op = "readdir"  // Path, Recursive; items: []File
	OpGlob     Op = "glob"     // Path; items: [][]byte
	OpMkdir    Op = "mkdir"    // Path
	OpRemove   Op = "remove"   // Path
	OpRename   Op = "rename"   // Path, To
	OpUpload   Op = "upload"   // Path; data frames of the client: a tar stream
	OpDownload Op = "download"
	OpDial     Op = "dial" // Network, Address; a first response, then data both ways
	OpStats    Op = "stats"
)

// Request begins an operation. Byte slices, which JSON carries as base64, are
// what may hold any bytes: paths, arguments, environment.
type Request struct {
	Op Op `json:"op"`
	// Call numbers the operation within its session, for Target of a cancel.
	Call   uint64 `json:"call,omitempty"`
	Target uint64 `json:"target,omitempty"`
	// Input says that data frames follow, closed by an end frame.
	Input bool `json:"input,omitempty"`

	Command *Command `json:"command,omitempty"`
	ID      string   `json:"id,omitempty"`
	Signal  string   `json:"signal,omitempty"`
	Tags    []string `json:"tags,omitempty"`

	Path      []byte `json:"path,omitempty"`
	To        []byte `json:"to,omitempty"`
	Offset    int64  `json:"offset,omitempty"`
	Max       int64  `json:"max,omitempty"` // 0: no bound
	Mode      uint32 `json:"mode,omitempty"`
	Append    bool   `json:"append,omitempty"`
	Recursive bool   `json:"recursive,omitempty"`

	Network string `json:"network,omitempty"`
	Address []byte `json:"address,omitempty"`
}

// Command is a [provider.Command].
type Command struct {
	Shell     []byte        `json:"shell,omitempty"`
	Args      [][]byte      `json:"args,omitempty"`
	Dir       []byte        `json:"dir,omitempty"`
	Env       [][]byte      `json:"env,omitempty"` // NAME=value
	Tag       string        `json:"tag,omitempty"`
	Timeout   time.Duration `json:"timeout_ns,omitempty"`
	MaxOutput int64         `json:"max_output,omitempty"`
	// Stream asks for all output at once as it comes, without the cap.
	Stream bool `json:"stream,omitempty"`
	// TTY is the size of the terminal of [OpTerminal].
	TTY *WindowSize `json:"tty,omitempty"`
}

// WindowSize is a [provider.WindowSize].
type WindowSize struct {
	Rows    uint16 `json:"rows"`
	Columns uint16 `json:"columns"`
}

// Response ends an operation.
type Response struct {
	Error     *Error   `json:"error,omitempty"`
	Result    *Result  `json:"result,omitempty"`
	Process   *Process `json:"process,omitempty"`
	Count     int      `json:"count,omitempty"`
	File      *File    `json:"file,omitempty"`
	Size      int64    `json:"size,omitempty"`
	Truncated bool     `json:"truncated,omitempty"`
	// Unended says that processes live on which the operation had to end.
	Unended bool            `json:"unended,omitempty"`
	Stats   *provider.Stats `json:"stats,omitempty"`
}

// Result is a [provider.Result] without the output, which travels before it.
type Result struct {
	ExitCode    int           `json:"exit_code"`
	Signal      string        `json:"signal,omitempty"`
	TimedOut    bool          `json:"timed_out,omitempty"`
	OutOfMemory bool          `json:"out_of_memory,omitempty"`
	Duration    time.Duration `json:"duration_ns"`
	// CutStdout and CutStderr say that output of that stream was dropped.
	CutStdout bool `json:"cut_stdout,omitempty"`
	CutStderr bool `json:"cut_stderr,omitempty"`
}

// Process is a [provider.ProcessInfo].
type Process struct {
	ID         string    `json:"id"`
	PID        int       `json:"pid"`
	Command    []byte    `json:"command"`
	Tag        string    `json:"tag,omitempty"`
	Background bool      `json:"background,omitempty"`
	Started    time.Time `json:"started"`
	Running    bool      `json:"running,omitempty"`
	ExitCode   int       `json:"exit_code"`
	Signal     string    `json:"signal,omitempty"`
}

// Info converts p.
func (p *Process) Info() provider.ProcessInfo {
	return provider.ProcessInfo{
		ID: p.ID, PID: p.PID, Command: string(p.Command), Tag: p.Tag, Background: p.Background,
		Started: p.Started, Running: p.Running, ExitCode: p.ExitCode, Signal: p.Signal,
	}
}

// File is a [provider.FileInfo].
type File struct {
	Path    []byte            `json:"path"`
	Kind    provider.FileKind `json:"kind"`
	Size    int64             `json:"size,omitempty"`
	Mode    uint32            `json:"mode"`
	ModTime int64             `json:"mtime_ns"` // Unix time
	Target  []byte            `json:"target,omitempty"`
}

// Info converts f. A kind that is none of the known ones becomes "other".
func (f *File) Info() provider.FileInfo {
	kind := f.Kind
	switch kind {
	case provider.KindFile, provider.KindDirectory, provider.KindSymlink:
	default:
		kind = provider.KindOther
	}
	return provider.FileInfo{
		Path: string(f.Path), Kind: kind, Size: max(f.Size, 0), Mode: fs.FileMode(f.Mode) & fs.ModePerm,
		ModTime: time.Unix(0, f.ModTime), Target: string(f.Target),
	}
}
