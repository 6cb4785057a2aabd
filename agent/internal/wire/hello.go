package wire

import (
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
)

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
			return h, fmt.Errorf("%w: it begins with %q, which is no agent's greeting", ErrGarbled, b[:n])
		}
		return h, truncated(err)
	}
	if string(b[:len(magic)]) != magic {
		return h, fmt.Errorf("%w: it begins with %q, which is no agent's greeting", ErrGarbled, b[:])
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
