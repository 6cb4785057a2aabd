//go:build linux

package server

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
	"golang.org/x/sys/unix"
)

var past = time.Unix(1, 0)

// drainGrace is how long a command's output is awaited after its end, where
// something that it left behind keeps the pipe open.
const drainGrace = 250 * time.Millisecond

// commands are all commands of a sandbox. There is one in a process, since it
// collects the status of every child.
type commands struct {
	files     *files
	workspace string
	env       []string
	prefix    string // makes ids unique over restarts of the sandbox
	devNull   *os.File
	spawner   spawner
	oomScore  *oomScore
	oomKills  *oomCounter
	// oomVictims are commands that have lost a process to want of memory.
	oomVictims oomVictims
	kept       *keptOutput

	// mu is held while a process is started and entered below, and while
	// statuses are collected: so a status never reaches another command that
	// has been given the same process id.
	mu         sync.Mutex
	running    map[int]*command // by process id
	background []*command       // oldest first, also those that have ended
	count      uint64
}

// command is one that runs or has run.
type command struct {
	id         string
	tag        string
	display    string
	background bool
	pid        int
	started    time.Time
	began      uint64 // start time as in proc_pid_stat(5), see bootTicks
	oomBefore  int64
	killed     atomic.Bool // this process has begun to kill it

	stdin          *os.File      // write end; nil: none
	feeding        chan struct{} // a mutex that can be waited for beside a context
	stdout, stderr *outPipe      // stderr is nil on a terminal
	terminal       *terminal     // nil: pipes

	// done is closed when the main process has ended; the fields below are
	// written before that.
	done   chan struct{}
	status syscall.WaitStatus
	ended  time.Time
	victim bool // of the kernel, for want of memory

	bg *backgroundState // nil in the foreground
}

func newCommands(files *files) (*commands, error) {
	devNull, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	var b [6]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	cs := &commands{
		files:     files,
		workspace: files.host(provider.Workspace),
		env:       os.Environ(),
		prefix:    hex.EncodeToString(b[:]),
		devNull:   devNull,
		spawner:   newSpawner(),
		oomScore:  openOOMScore(),
		oomKills:  openOOMCounter(),
		kept:      newKeptOutput(),
		running:   map[int]*command{},
	}
	return cs, nil
}

// start runs a command. sink gets its output, one piece at a time for each
// stream. With stdin the command gets a pipe, else an empty input.
func (cs *commands) start(cmd *wire.Command, c *command, stdin bool, sink func(provider.Stream, []byte)) error {
	cs.mu.Lock()
	cs.count++
	c.id = fmt.Sprintf("%s-%d", cs.prefix, cs.count)
	cs.mu.Unlock()
	var p *program
	err := slowly(func() (err error) {
		p, err = cs.program(cmd, c.id)
		return err
	})
	if err != nil {
		return err
	}
	c.tag, c.display = cmd.Tag, display(cmd)
	c.done = make(chan struct{})
	c.oomBefore = cs.oomKills.read()

	ends, err := cs.connect(cmd, stdin)
	if err != nil {
		return notStarted("%w", err)
	}
	attr := &syscall.ProcAttr{
		Dir:   p.dir,
		Env:   p.env,
		Files: []uintptr{ends.child[0].Fd(), ends.child[1].Fd(), ends.child[2].Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: ends.terminal != nil}, // of its descriptor 0
	}
	cs.spawner.do(func() {
		cs.mu.Lock()
		defer cs.mu.Unlock()
		c.began, c.started = bootTicks(), time.Now()
		cs.oomScore.raise()
		c.pid, err = syscall.ForkExec(p.path, p.argv, attr)
		cs.oomScore.lower()
		if err == nil {
			cs.running[c.pid] = c
			if c.background {
				cs.remember(c)
			}
		}
	})
	cs.closeChild(ends)
	if err != nil {
		ends.close()
		return p.explainStart(err)
	}
	c.feeding = make(chan struct{}, 1)
	c.stdin, c.terminal = ends.stdin, ends.terminal
	c.stdout = newOutPipe(ends.stdout, c.terminal != nil, func(b []byte) { sink(provider.Stdout, b) })
	if ends.stderr != nil {
		c.stderr = newOutPipe(ends.stderr, false, func(b []byte) { sink(provider.Stderr, b) })
	}
	return nil
}

// ends are both ends of a command's standard streams. The command's block, which
// is what programs expect; the agent's are waited for without a thread.
type ends struct {
	child                 [3]*os.File
	stdin, stdout, stderr *os.File  // nil: there is none
	terminal              *terminal // whose master is stdin and stdout; nil: pipes
}

// close closes the agent's ends.
func (e *ends) close() {
	for _, f := range []*os.File{e.stdin, e.stdout, e.stderr} {
		if f != nil {
			f.Close() // a second time is fine
		}
	}
	if e.terminal != nil {
		e.terminal.close()
	}
}

// connect makes the ends of a command's streams.
func (cs *commands) connect(cmd *wire.Command, stdin bool) (*ends, error) {
	e := &ends{}
	if cmd.TTY != nil {
		t, err := openTerminal(cmd.TTY)
		if err != nil {
			return nil, fmt.Errorf("terminal: %w", err)
		}
		e.terminal, e.stdin, e.stdout = t, t.master, t.master
		e.child = [3]*os.File{t.slave, t.slave, t.slave}
		return e, nil
	}
	err := error(nil)
	e.child[0] = cs.devNull
	if stdin {
		e.child[0], e.stdin, err = pipe(true)
	}
	if err == nil {
		e.stdout, e.child[1], err = pipe(false)
	}
	if err == nil {
		e.stderr, e.child[2], err = pipe(false)
	}
	if err != nil {
		cs.closeChild(e)
		e.close()
		return nil, fmt.Errorf("pipe: %w", err)
	}
	return e, nil
}

// closeChild closes the ends that a command has been given. The slave of a
// terminal stays open.
func (cs *commands) closeChild(e *ends) {
	for _, f := range e.child {
		if f != nil && f != cs.devNull && e.terminal == nil {
			f.Close()
		}
	}
}

// pipe returns a pipe whose one end, ours, is waited for by the runtime's
// poller.
func pipe(oursWrites bool) (r, w *os.File, err error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return nil, nil, err
	}
	ours := fd[0]
	if oursWrites {
		ours = fd[1]
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(fd[0])
		unix.Close(fd[1])
		return nil, nil, err
	}
	return os.NewFile(uintptr(fd[0]), "pipe"), os.NewFile(uintptr(fd[1]), "pipe"), nil
}

// maxDisplay bounds the command line that a list of processes shows, in bytes.
const maxDisplay = 1 << 10

func display(cmd *wire.Command) string {
	c := provider.Command{Shell: string(cmd.Shell)}
	size := 0
	for _, arg := range cmd.Args {
		if size += len(arg); size > maxDisplay {
			break
		}
		c.Args = append(c.Args, string(arg))
	}
	s := c.String()
	if len(s) > maxDisplay || len(c.Args) < len(cmd.Args) {
		s = s[:min(len(s), maxDisplay)] + "..."
	}
	return s
}

// reap collects the status of every child as it ends, of commands and of
// processes that they left behind, for as long as the process lives.
func (cs *commands) reap() {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, unix.SIGCHLD)
	go func() {
		for ; ; <-signals {
			cs.collect()
		}
	}()
}

func (cs *commands) collect() {
	for {
		var status syscall.WaitStatus
		cs.mu.Lock()
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG|unix.WALL, nil)
		c := cs.running[pid]
		delete(cs.running, pid)
		cs.mu.Unlock()
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return // no child, or none that has ended
		}
		if c != nil {
			c.status, c.ended = status, time.Now()
			cs.noteVictim(c)
			close(c.done)
		}
	}
}

// list returns the commands that run now and that match.
func (cs *commands) list(match func(*command) bool) []*command {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var found []*command
	for _, c := range cs.running {
		if match(c) {
			found = append(found, c)
		}
	}
	return found
}

// alive reports whether the main process has not ended.
func (c *command) alive() bool {
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// result describes the end of the main process.
func (c *command) result(cs *commands) *wire.Result {
	r := &wire.Result{ExitCode: c.status.ExitStatus(), Duration: c.ended.Sub(c.started)}
	if c.status.Signaled() {
		r.ExitCode, r.Signal = -1, signalName(c.status.Signal())
	}
	if r.ExitCode != 0 {
		r.OutOfMemory = cs.outOfMemory(c)
	}
	return r
}

func signalName(s syscall.Signal) string {
	if name := unix.SignalName(s); name != "" {
		return name
	}
	return fmt.Sprintf("SIG%d", int(s))
}
