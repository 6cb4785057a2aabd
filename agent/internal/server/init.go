//go:build linux

package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Exit codes of the first process.
const (
	ExitTerminated = 143 // by SIGTERM or SIGINT
	ExitOwnerLost  = 75
	ExitExpired    = 76
)

// DefaultSocket is the abstract Unix socket at which the first process takes
// further sessions.
const DefaultSocket = "@capyrun-agent"

// InitConfig says how the first process runs.
type InitConfig struct {
	Grace   time.Duration // 0: 30 s
	Keep    bool          // outlive the owner
	Expires time.Time     // zero: never

	Places   []Place
	Socket   string // empty: DefaultSocket
	ClientID uint32 // user id whose processes may open sessions
}

// Init is the first process of a sandbox. It returns the exit code.
func Init(cfg InitConfig) (code int, err error) {
	if cfg.Grace <= 0 {
		cfg.Grace = 30 * time.Second
	}
	// Whatever this process was started with is not for commands.
	unix.CloseRange(3, ^uint(0)>>1, unix.CLOSE_RANGE_CLOEXEC)
	// Before anything else runs that could take the name.
	if cfg.Socket == "" {
		cfg.Socket = DefaultSocket
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: cfg.Socket, Net: "unix"})
	if err != nil {
		return 1, err
	}
	defer listener.Close()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT)
	signal.Notify(make(chan os.Signal, 1), heedless...)

	stdio, err := takeStdio()
	if err != nil {
		return 1, fmt.Errorf("standard input and output: %w", err)
	}
	files := newFiles(cfg.Places, false)
	// This opens files of /proc/self that are closed to it afterwards.
	cmds, err := newCommands(files)
	if err != nil {
		return 1, err
	}
	// The sandbox's own code has the same user id: without this it could trace
	// this process and read its descriptors and memory.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 1, fmt.Errorf("prctl: %w", err)
	}
	if os.Getpid() != 1 {
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			return 1, fmt.Errorf("prctl: %w", err)
		}
	}
	settleRuntime()
	cmds.reap()

	srv := &Server{files: files, cmds: cmds}
	lost := make(<-chan struct{}) // never
	if !cfg.Keep && cfg.Expires.IsZero() {
		srv.owner = newOwner(cfg.Grace)
		lost = srv.owner.lost
	}
	var expired <-chan time.Time
	if !cfg.Expires.IsZero() {
		// From here on the monotonic clock counts, whatever the wall clock does.
		expired = time.After(time.Until(cfg.Expires))
	}
	go srv.Serve(stdio)
	go srv.accept(listener, cfg.ClientID)

	select {
	case <-signals:
		code = ExitTerminated
	case <-lost:
		code = ExitOwnerLost
	case <-expired:
		code = ExitExpired
	}
	if os.Getpid() != 1 {
		// The kernel ends the rest of the namespace with its first process.
		err = cmds.killEverything()
	}
	return code, err
}

// heedless are signals that would end a Go program and that the sandbox's code
// may send to the first process. They are received and dropped, not ignored: an
// ignored signal would be ignored by every command too.
var heedless = []os.Signal{
	unix.SIGHUP, unix.SIGQUIT, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, unix.SIGBUS, unix.SIGFPE, unix.SIGUSR1, unix.SIGSEGV,
	unix.SIGUSR2, unix.SIGPIPE, unix.SIGALRM, unix.SIGSTKFLT, unix.SIGXCPU, unix.SIGXFSZ, unix.SIGVTALRM, unix.SIGPROF,
	unix.SIGIO, unix.SIGPWR, unix.SIGSYS,
}

// maxAsked is how many connections may be asked who they are at once.
const maxAsked = 16

// accept takes sessions from processes of one user id: root, which the
// sandbox's own code cannot become.
func (s *Server) accept(listener *net.UnixListener, clientID uint32) {
	asked := make(chan struct{}, maxAsked)
	for {
		conn, err := listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			time.Sleep(10 * time.Millisecond) // out of descriptors, for now
			continue
		}
		asked <- struct{}{}
		go func() {
			cred, err := peer(conn)
			<-asked
			if err != nil || cred.Uid != clientID {
				conn.Close()
				return
			}
			s.Serve(conn)
		}()
	}
}

// takeStdio moves the standard input and output to descriptors of their own
// and leaves /dev/null in their place, so that nothing else in this process or
// a child of it can write into the session.
func takeStdio() (io.ReadWriteCloser, error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	var moved [2]*os.File
	for fd := range moved {
		n, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			return nil, err
		}
		if err := unix.Dup3(int(null.Fd()), fd, 0); err != nil {
			return nil, err
		}
		unix.SetNonblock(n, true) // what cannot be polled stays blocking
		moved[fd] = os.NewFile(uintptr(n), "stdio")
	}
	return &stdio{in: moved[0], out: moved[1]}, nil
}

// stdio makes one stream of standard input and output.
type stdio struct {
	in, out *os.File
	once    sync.Once
}

func (s *stdio) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *stdio) Write(p []byte) (int, error) { return s.out.Write(p) }

func (s *stdio) Close() error {
	var err error
	s.once.Do(func() { err = errors.Join(s.in.Close(), s.out.Close()) })
	return err
}

// Connect relays between this process's standard input and output and the
// first process of the sandbox, until either side ends.
func Connect(socket string, firstPID int32) error {
	if socket == "" {
		socket = DefaultSocket
	}
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("no agent runs here: %w", err)
	}
	defer conn.Close()
	cred, err := peer(conn)
	if err != nil {
		return err
	}
	if firstPID != 0 && !threadOf(firstPID, cred.Pid) {
		return fmt.Errorf("process %d answers instead of the agent", cred.Pid)
	}
	std, err := takeStdio()
	if err != nil {
		return err
	}
	go func() {
		io.Copy(conn, std)
		conn.CloseWrite()
	}()
	_, err = io.Copy(std, conn)
	return err
}

// ServeStdio serves one session over standard input and output.
func (s *Server) ServeStdio() error {
	std, err := takeStdio()
	if err != nil {
		return err
	}
	err = s.Serve(std)
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
