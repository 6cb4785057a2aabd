//go:build linux

package server

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// peer tells who is at the other end of a connection.
//
// gVisor answers SO_PEERCRED with the asker's own credentials. No process
// connects to itself here, so that shows; there either end sends its
// credentials as a message, which the kernel checks as it does SO_PEERCRED.
func peer(conn *net.UnixConn) (*unix.Ucred, error) {
	var cred *unix.Ucred
	err := control(conn, func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err == nil && cred.Pid == int32(os.Getpid()) {
		return exchangeCredentials(conn)
	}
	return cred, err
}

// threadOf reports whether a number from credentials stands for a process: it
// should be the process id, and gVisor gives that of the thread which sent them.
func threadOf(pid, thread int32) bool {
	if pid == thread {
		return true
	}
	_, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, thread))
	return err == nil
}

// exchangeTimeout bounds the wait for the other end, which may be anybody.
const exchangeTimeout = 5 * time.Second

// exchangeCredentials sends this process's credentials and receives those of
// the process at the other end, which must do the same.
func exchangeCredentials(conn *net.UnixConn) (*unix.Ucred, error) {
	if err := control(conn, func(fd int) error {
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1))
	}); err != nil {
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(exchangeTimeout))
	defer conn.SetDeadline(time.Time{})
	own := &unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
	// A stream carries the message with a byte, or not at all.
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixCredentials(own), nil); err != nil {
		return nil, fmt.Errorf("send credentials: %w", err)
	}
	// One byte and no more: what follows belongs to the session.
	var b [1]byte
	oob := make([]byte, unix.CmsgSpace(unix.SizeofUcred))
	_, n, _, _, err := conn.ReadMsgUnix(b[:], oob)
	if err != nil {
		return nil, fmt.Errorf("receive credentials: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, fmt.Errorf("receive credentials: %w", err)
	}
	for i := range messages {
		if cred, err := unix.ParseUnixCredentials(&messages[i]); err == nil {
			return cred, nil
		}
	}
	return nil, errors.New("the other end sent no credentials")
}
