//go:build linux

package agent_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/agent"
	"golang.org/x/sys/unix"
)

const pid1Role = "CAPYRUN_TEST_PID1"

// newPID1 starts an agent as the first process of new process id and mount
// namespaces, as uid 1000 where the tests run as root.
func newPID1(t testing.TB, args ...string) (*sandbox, *agent.Session) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &sandbox{t: t, workspace: "/tmp/workspace", tmp: "/tmp/tmp", exited: make(chan struct{})}
	b.cmd = exec.Command(self, append([]string{
		"agent", "init", "--place", "/workspace=/tmp/workspace", "--place", "/tmp=/tmp/tmp",
	}, args...)...)
	b.cmd.Env = append(os.Environ(), pid1Role+"=1")
	b.cmd.Stderr = os.Stderr
	b.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	if os.Getuid() != 0 {
		b.cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWUSER
		b.cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		b.cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	if b.stdin, err = b.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if b.stdout, err = b.cmd.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := b.cmd.Start(); err != nil {
		if os.Getuid() != 0 {
			t.Skipf("neither root nor user namespaces: %v", err)
		}
		t.Fatal(err)
	}
	go func() {
		b.cmd.Wait()
		close(b.exited)
	}()
	t.Cleanup(func() {
		b.cmd.Process.Signal(unix.SIGTERM)
		select {
		case <-b.exited:
		case <-time.After(20 * time.Second):
			t.Error("the agent does not end")
			b.cmd.Process.Kill()
		}
	})
	s := b.session(agent.SessionConfig{Dial: func(context.Context) (io.ReadWriteCloser, error) {
		return nil, fmt.Errorf("no way back")
	}})
	if err := s.Adopt(ctx, b.stream()); err != nil {
		t.Fatal(err)
	}
	return b, s
}

// becomePID1 is the first process of the namespaces before it is the agent.
func becomePID1() {
	os.Unsetenv(pid1Role)
	check := func(what string, err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, what, err)
			os.Exit(1)
		}
	}
	self, err := os.Open("/proc/self/exe")
	check("open", err)
	check("mount", unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	check("mount /proc", unix.Mount("proc", "/proc", "proc", 0, ""))
	check("mount /tmp", unix.Mount("tmpfs", "/tmp", "tmpfs", 0, "mode=0755,size=256m"))
	binary, err := os.OpenFile("/tmp/capyrun", os.O_CREATE|os.O_WRONLY, 0o755)
	check("create", err)
	_, err = io.Copy(binary, self)
	check("copy", err)
	check("close", binary.Close())
	for _, dir := range []string{"/tmp/workspace", "/tmp/tmp"} {
		check("mkdir", os.Mkdir(dir, 0o755))
		if rootOutside() {
			check("chown", os.Chown(dir, 1000, 1000))
		}
	}
	if rootOutside() {
		check("setgroups", syscall.Setgroups(nil))
		check("setgid", syscall.Setgid(1000))
		check("setuid", syscall.Setuid(1000))
	}
	check("exec", syscall.Exec("/tmp/capyrun", os.Args, os.Environ()))
}

// rootOutside reports whether uid 0 is the machine's own, so that there is a
// uid 1000 too.
func rootOutside() bool {
	b, _ := os.ReadFile("/proc/self/uid_map")
	f := strings.Fields(string(b))
	return len(f) == 3 && f[2] != "1"
}
