//go:build linux

package server

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
	"golang.org/x/sys/unix"
)

// DefaultPath is the PATH of commands where neither the sandbox nor the
// command sets one.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// markName is the environment variable that says which command a process
// belongs to, however it was detached.
const markName = wire.MarkVariable

// program is a command that is ready to be started.
type program struct {
	path string
	argv []string
	dir  string
	env  []string
}

// notStarted says why no process ran.
func notStarted(format string, args ...any) error {
	return &provider.Error{Kind: provider.ErrNotStarted, Err: fmt.Errorf(format, args...)}
}

// program resolves what a client asks for. mark is the value of [markName].
func (cs *commands) program(cmd *wire.Command, mark string) (*program, error) {
	p := &program{dir: cs.workspace}
	if len(cmd.Dir) > 0 {
		dir, err := provider.CleanPath("cwd", string(cmd.Dir))
		if err != nil {
			return nil, err
		}
		p.dir = cs.files.host(dir)
	}
	if err := checkDir(p.dir); err != nil {
		return nil, err
	}
	searchPath := ""
	p.env, searchPath = cs.environ(cmd.Env, mark)
	for _, s := range append([][]byte{cmd.Shell}, slices.Concat(cmd.Args, cmd.Env)...) {
		if bytes.IndexByte(s, 0) >= 0 {
			return nil, &provider.InvalidError{Field: "cmd", Value: string(s), Reason: "must not contain NUL"}
		}
	}

	if len(cmd.Args) == 0 {
		shell, err := findShell(searchPath, p.dir)
		if err != nil {
			return nil, err
		}
		p.path = shell
		p.argv = []string{path.Base(shell), "-c"}
		if line := string(cmd.Shell); strings.HasPrefix(line, "-") || strings.HasPrefix(line, "+") {
			p.argv = append(p.argv, "--", line) // else the shell takes it for an option
		} else {
			p.argv = append(p.argv, line)
		}
		return p, nil
	}
	for _, arg := range cmd.Args {
		p.argv = append(p.argv, string(arg))
	}
	var err error
	p.path, err = lookPath(p.argv[0], searchPath, p.dir)
	return p, err
}

func checkDir(dir string) error {
	switch fi, err := os.Stat(dir); {
	case errors.Is(err, fs.ErrNotExist):
		return notStarted("working directory %s does not exist", dir)
	case errors.Is(err, syscall.ENOTDIR) || err == nil && !fi.IsDir():
		return notStarted("working directory %s is not a directory", dir)
	case err != nil:
		return notStarted("working directory %s: %w", dir, bare(err))
	}
	if err := unix.Access(dir, unix.X_OK); err != nil {
		return notStarted("working directory %s: %w", dir, err)
	}
	return nil
}

// bare removes what the os package adds to an error, for a message that names
// the operation and the path already.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.LinkError](err); ok {
		return e.Err
	}
	if e, ok := errors.AsType[*os.SyscallError](err); ok {
		return e.Err
	}
	return err
}

// environ returns the environment of a command and its PATH: that of the first
// process, what the command adds, and the mark.
func (cs *commands) environ(add [][]byte, mark string) (env []string, searchPath string) {
	env = append(env, markName+"="+mark)
	overridden := make(map[string]bool, len(add))
	for _, kv := range add {
		if name, value, ok := strings.Cut(string(kv), "="); ok && name != "" && name != markName {
			overridden[name] = true
			env = append(env, string(kv))
			if name == "PATH" {
				searchPath = value
			}
		}
	}
	for _, kv := range cs.env {
		name, value, _ := strings.Cut(kv, "=")
		if overridden[name] || name == markName {
			continue
		}
		env = append(env, kv)
		if name == "PATH" {
			searchPath = value
		}
	}
	if searchPath == "" && !overridden["PATH"] {
		searchPath = DefaultPath
		env = append(env, "PATH="+DefaultPath)
	}
	return env, searchPath
}

// findShell looks for bash, then sh, also where the command's own PATH has
// neither: the shell is ours to find, not the command's.
func findShell(searchPath, dir string) (string, error) {
	for _, name := range []string{"bash", "sh"} {
		for _, where := range []string{searchPath, DefaultPath} {
			if found, err := lookPath(name, where, dir); err == nil {
				return found, nil
			}
		}
	}
	return "", notStarted("the image has neither bash nor sh: give the command as a list of program and arguments")
}

// lookPath finds a program as execvp does, relative to dir.
func lookPath(name, searchPath, dir string) (string, error) {
	if name == "" {
		return "", notStarted("the program's name is empty")
	}
	if strings.Contains(name, "/") {
		return name, executable(inDir(dir, name), name)
	}
	var denied error
	for _, elem := range strings.Split(searchPath, ":") {
		file := path.Join(inDir(dir, elem), name)
		err := executable(file, file)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, fs.ErrPermission) && denied == nil {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", notStarted("no program %q in PATH (%s)", name, searchPath)
}

func inDir(dir, p string) string {
	if path.IsAbs(p) {
		return p
	}
	return path.Join(dir, p)
}

func executable(file, name string) error {
	fi, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return notStarted("no program %q", name)
	case err != nil:
		return notStarted("program %q: %w", name, bare(err))
	case fi.IsDir():
		return notStarted("program %q is a directory", name)
	}
	if err := unix.Access(file, unix.X_OK); err != nil {
		return notStarted("program %q is not executable: %w", name, err)
	}
	return nil
}

// explainStart turns the error of fork and exec into what to do about it.
func (p *program) explainStart(err error) error {
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		return notStarted("program %q: %w: it is for another kind of machine, or a script without a #! line", p.argv[0], err)
	case errors.Is(err, syscall.ENOENT):
		return notStarted("program %q: the interpreter or loader that it names does not exist", p.argv[0])
	case errors.Is(err, syscall.E2BIG):
		return notStarted("the arguments and the environment are too long: %w", err)
	case errors.Is(err, syscall.EAGAIN):
		return notStarted("the sandbox's process limit is reached: %w", err)
	case errors.Is(err, syscall.ENOMEM):
		return notStarted("the sandbox's memory is exhausted: %w", err)
	}
	return notStarted("program %q: %w", p.argv[0], err)
}
