package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
)

// Version is the newest version of the protocol that this package speaks.
const Version = 1

const (
	magic    = "capyrun\x00"
	maxHello = 16 << 10
	// maxComplaint is how much is quoted of what is no greeting.
	maxComplaint = 1 << 10
)

func notGreeting(b []byte) error {
	return fmt.Errorf("%w: this is no agent's greeting: %q", ErrGarbled, bytes.TrimSpace(b))
}

// Hello is what each side says of itself before anything else.
type Hello struct {
	Version      int      `json:"version"`
	Capabilities []string `json:"capabilities,omitempty"`
	// PID is the agent's process id in its sandbox; 0 from a client.
	PID int `json:"pid,omitempty"`
}

// WriteHello sends a greeting in one write.
func WriteHello(w io.Writer, h Hello) error {
	body, err := json.Marshal(h)
	if err != nil {
		panic(err) // a plain struct
	}
	b := append([]byte(magic), 0, 0, 0, 0)
	binary.BigEndian.PutUint32(b[len(magic):], uint32(len(body)))
	_, err = w.Write(append(b, body...))
	return err
}

// ReadHello reads the peer's greeting and not a byte more.
func ReadHello(r io.Reader) (Hello, error) {
	var h Hello
	var b [len(magic) + 4]byte
	if n, err := io.ReadFull(r, b[:]); err != nil {
		if n > 0 && string(b[:min(n, len(magic))]) != magic[:min(n, len(magic))] {
			return h, notGreeting(b[:n])
		}
		return h, truncated(err)
	}
	if string(b[:len(magic)]) != magic {
		// An engine that could not run the agent says why where the agent would
		// greet, and then the stream ends.
		rest, _ := io.ReadAll(io.LimitReader(r, maxComplaint))
		return h, notGreeting(append(b[:], rest...))
	}
	n := binary.BigEndian.Uint32(b[len(magic):])
	if n > maxHello {
		return h, fmt.Errorf("%w: greeting of %d bytes, at most %d are allowed", ErrGarbled, n, maxHello)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return h, truncated(err)
	}
	if err := json.Unmarshal(body, &h); err != nil {
		return h, fmt.Errorf("%w: greeting: %v", ErrGarbled, err)
	}
	if h.Version < 1 {
		return h, fmt.Errorf("%w: greeting with version %d", ErrGarbled, h.Version)
	}
	return h, nil
}
