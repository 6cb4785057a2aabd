package docker

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/docker/docker/api/types"
)

// maxFrame bounds one frame of an attach stream. The engine writes frames of
// some tens of kilobytes; more is not the engine speaking.
const maxFrame = 16 << 20

// maxStderr is how much of the agent's own error output is kept. It writes
// none unless it crashes.
const maxStderr = 4 << 10

// stream is the byte stream of a container's process over a hijacked
// connection. The engine multiplexes standard output and standard error in
// frames, see the attach endpoint of the Docker Engine API. The client
// library's stdcopy is not used: it takes a truncated frame for a clean end.
//
// Reading is for one goroutine at a time, writing for another.
type stream struct {
	conn   types.HijackedResponse
	in     *bufio.Reader // of conn; larger than its own, since a frame may have 32 KiB
	left   int           // bytes left of the present frame of standard output
	mu     sync.Mutex
	stderr []byte
}

func newStream(conn types.HijackedResponse) *stream {
	return &stream{conn: conn, in: bufio.NewReaderSize(conn.Reader, 64<<10)}
}

// Read reads standard output. An end within a frame is io.ErrUnexpectedEOF.
func (s *stream) Read(p []byte) (int, error) {
	for s.left == 0 {
		if err := s.nextFrame(); err != nil {
			return 0, err
		}
	}
	n, err := s.in.Read(p[:min(len(p), s.left)])
	s.left -= n
	if err == io.EOF && s.left > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// nextFrame reads a header; the payload of a standard error frame is kept aside.
func (s *stream) nextFrame() error {
	var header [8]byte
	if _, err := io.ReadFull(s.in, header[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(header[4:])
	if size > maxFrame {
		return fmt.Errorf("attach stream: frame of %d bytes", size)
	}
	switch header[0] {
	case 0, 1:
		s.left = int(size)
		return nil
	case 2, 3:
		payload := io.LimitReader(s.in, int64(size))
		kept, err := io.ReadAll(io.LimitReader(payload, maxStderr))
		if err == nil {
			_, err = io.Copy(io.Discard, payload)
		}
		s.mu.Lock()
		s.stderr = append(s.stderr, kept[:min(len(kept), maxStderr-len(s.stderr))]...)
		s.mu.Unlock()
		return err
	}
	return fmt.Errorf("attach stream: frame of unknown stream %d", header[0])
}

// errorText is what the process wrote to its standard error.
func (s *stream) errorText() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return string(s.stderr)
}

func (s *stream) Write(p []byte) (int, error) { return s.conn.Conn.Write(p) }

func (s *stream) Close() error { return s.conn.Conn.Close() }
