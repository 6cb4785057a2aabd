package tartree

import (
	"errors"
	"io"
)

// Pipe runs the writer and the reader of a stream at once and returns when both
// have ended. The failure of one ends the other, and is the error.
func Pipe(write func(io.Writer) error, read func(io.Reader) error) error {
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := write(pw)
		pw.CloseWithError(err) // nil ends the stream
		done <- err
	}()
	err := read(pr)
	pr.CloseWithError(errReaderGone)
	if werr := <-done; werr != nil && !errors.Is(werr, errReaderGone) {
		return werr
	}
	return err
}

var errReaderGone = errors.New("the other end has stopped reading")
