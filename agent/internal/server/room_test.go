//go:build linux

package server

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRoom proves that a transfer leaves no large pipes behind, also where they
// are full when it ends.
func TestRoom(t *testing.T) {
	in, client, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	clientIn, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []*os.File{in, client, clientIn, out} {
		defer f.Close()
	}
	size := func(want int) {
		t.Helper()
		for _, f := range []*os.File{in, out} {
			if got, err := unix.FcntlInt(f.Fd(), unix.F_GETPIPE_SZ, 0); err != nil || got != want {
				t.Errorf("a pipe of %d bytes instead of %d, %v", got, want, err)
			}
		}
	}
	r := &room{pipes: &stdio{in: in, out: out}}
	r.more()
	r.more()
	size(bulkRoom)
	r.end(true)
	size(bulkRoom) // the other one goes on
	content := make([]byte, bulkRoom/2)
	for _, f := range []*os.File{out, client} {
		if _, err := f.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	r.end(true)
	size(bulkRoom)
	for _, f := range []*os.File{clientIn, in} {
		for left := len(content); left > 0; {
			n, err := f.Read(content)
			if err != nil {
				t.Fatal(err)
			}
			left -= n
		}
	}
	r.end(false)
	size(usualRoom)
}
