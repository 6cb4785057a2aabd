//go:build linux

package server

import (
	"bytes"
	"os"
	"strconv"
	"syscall"
)

// oomScore makes commands likelier victims of the out-of-memory killer than
// the agent. A child inherits the score, so the agent raises its own while it
// forks: there is no moment at which a command has the agent's.
type oomScore struct {
	file *os.File // nil: lowering is not allowed here
	low  []byte
}

// commandOOMScore is added to a command's share of the memory, in thousandths:
// enough that the smallest command goes before the agent.
const commandOOMScore = 500

func openOOMScore() *oomScore {
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return &oomScore{}
	}
	var b [16]byte
	n, _ := f.Read(b[:])
	low := bytes.TrimSpace(b[:n])
	now, err := strconv.Atoi(string(low))
	o := &oomScore{file: f, low: append([]byte(nil), low...)}
	// Raising is always allowed, lowering only down to where the score has been
	// by its owner's will: try it before anything depends on it.
	if err != nil || now >= commandOOMScore || !o.write(low) {
		f.Close()
		return &oomScore{}
	}
	o.raise()
	if !o.write(o.low) {
		f.Close()
		return &oomScore{}
	}
	return o
}

func (o *oomScore) write(b []byte) bool {
	_, err := syscall.Pwrite(int(o.file.Fd()), b, 0)
	return err == nil
}

var raised = []byte(strconv.Itoa(commandOOMScore))

// raise and lower enclose a fork. Calls do not overlap.
func (o *oomScore) raise() {
	if o.file != nil {
		o.write(raised)
	}
}

func (o *oomScore) lower() {
	if o.file != nil {
		o.write(o.low)
	}
}
