// Package wire is the agent's protocol, as SPEC.md beside package agent
// describes it: the greeting, the multiplexer and its guard, and the frames and
// messages of one operation. It is shared by the client and the server, and
// trusts neither.
package wire

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/capybara-hq/capyrun/provider"
)

// Type is the kind of a frame.
type Type byte

const (
	TypeRequest Type = 1  // client: JSON [Request], begins an operation
	TypeData    Type = 2  // both: raw bytes of input, of a file, of a connection
	TypeEnd     Type = 3  // both: no more data frames in this direction
	TypeResize  Type = 4  // client: JSON [WindowSize], the size of the command's terminal from now on
	TypeStdout  Type = 16 // server: raw output
	TypeStderr  Type = 17 // server: raw output
	TypeItems   Type = 18 // server: a JSON list, a part of what was asked for
	TypeFinal   Type = 19 // server: JSON [Response], ends the operation
)

// Caps on the payload of a frame, in bytes. A request carries a command's
// arguments and environment, of which Linux takes about 2 MiB.
const (
	MaxData    = 64 << 10
	MaxRequest = 4 << 20
	MaxItems   = 256 << 10
	MaxFinal   = 1 << 20
	maxResize  = 256
	maxUnknown = 1 << 20
)

func (t Type) cap() int {
	switch t {
	case TypeRequest:
		return MaxRequest
	case TypeData, TypeStdout, TypeStderr:
		return MaxData
	case TypeEnd:
		return 0
	case TypeResize:
		return maxResize
	case TypeItems:
		return MaxItems
	case TypeFinal:
		return MaxFinal
	}
	return maxUnknown
}

const frameHeader = 5

// OutputType is the type of a frame with output of s.
func OutputType(s provider.Stream) Type {
	if s == provider.Stderr {
		return TypeStderr
	}
	return TypeStdout
}

// ErrGarbled marks what no correct peer sends.
var ErrGarbled = errors.New("garbled stream")

// Reader reads the frames of one stream.
type Reader struct {
	br   *bufio.Reader
	left int // of the current frame
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader {
	return &Reader{br: bufio.NewReaderSize(r, 4<<10)}
}

// Next skips what is left of the current frame and returns the next one's type
// and length. It returns io.EOF only between frames. A deadline of the
// underlying stream that passes loses nothing: Next can be called again.
func (r *Reader) Next() (Type, int, error) {
	for r.left > 0 {
		n, err := r.br.Discard(r.left)
		r.left -= n
		if err != nil {
			return 0, 0, truncated(err)
		}
	}
	h, err := r.br.Peek(frameHeader)
	if err != nil {
		if len(h) > 0 {
			err = truncated(err)
		}
		return 0, 0, err
	}
	t, n := Type(h[0]), binary.BigEndian.Uint32(h[1:])
	if n > uint32(t.cap()) {
		return 0, 0, fmt.Errorf("%w: frame of type %d with %d bytes, at most %d are allowed", ErrGarbled, t, n, t.cap())
	}
	r.br.Discard(frameHeader) // cannot fail: it was peeked
	r.left = int(n)
	return t, r.left, nil
}

// Read reads from the payload of the current frame; io.EOF is its end.
func (r *Reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	if len(p) > r.left {
		p = p[:r.left]
	}
	n, err := r.br.Read(p)
	r.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Payload reads the rest of the current frame.
func (r *Reader) Payload() ([]byte, error) {
	b := make([]byte, r.left)
	n, err := io.ReadFull(r.br, b)
	r.left -= n
	return b, truncated(err)
}

// JSON decodes the current frame into v.
func (r *Reader) JSON(v any) error {
	b, err := r.Payload()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%w: %v", ErrGarbled, err)
	}
	return nil
}

func truncated(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Writer collects frames and writes them together, so that a small result
// costs one write. Its methods must not be called at once.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter returns a Writer to w.
func NewWriter(w io.Writer) *Writer { return &Writer{w: w} }

// Frame adds a frame with the given payload, which must be within the type's
// cap.
func (w *Writer) Frame(t Type, payload []byte) {
	w.buf = append(w.buf, byte(t))
	w.buf = binary.BigEndian.AppendUint32(w.buf, uint32(len(payload)))
	w.buf = append(w.buf, payload...)
}

// Raw adds data as frames of type t, as many as are needed.
func (w *Writer) Raw(t Type, data []byte) {
	for len(data) > 0 {
		n := min(len(data), MaxData)
		w.Frame(t, data[:n])
		data = data[n:]
	}
}

// JSON adds a frame with v. It reports whether v was within the type's cap.
func (w *Writer) JSON(t Type, v any) bool {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // messages are plain structs
	}
	if len(b) > t.cap() {
		return false
	}
	w.Frame(t, b)
	return true
}

// Buffered returns the number of bytes that Flush would write.
func (w *Writer) Buffered() int { return len(w.buf) }

// keepBuffer bounds what an idle Writer holds on to.
const keepBuffer = 4 << 10

// Flush writes what was added. The buffer is kept for what follows, until
// [Writer.Shrink].
func (w *Writer) Flush() error {
	if len(w.buf) == 0 {
		return nil
	}
	_, err := w.w.Write(w.buf)
	w.buf = w.buf[:0]
	return err
}

// Shrink gives back a large buffer.
func (w *Writer) Shrink() {
	if cap(w.buf) > keepBuffer && len(w.buf) == 0 {
		w.buf = nil
	}
}
