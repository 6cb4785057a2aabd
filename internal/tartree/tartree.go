// Package tartree packs directory trees into tar streams and unpacks them
// again. A stream to unpack may come from an enemy: nothing outside of the
// target directory is ever read, written or linked to.
package tartree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Defaults of [Limits].
const (
	DefaultBytes   = int64(8) << 30
	DefaultEntries = int64(1_000_000)
)

// Limits bound what [Unpack] accepts. The zero value is a sensible default.
type Limits struct {
	Bytes   int64 // of all files together. 0: [DefaultBytes]
	Entries int64 // files, directories and links. 0: [DefaultEntries]
	// Readable makes everything readable for everybody, and directories
	// searchable, whatever the stream says.
	Readable bool
	// AnyLink accepts symbolic links that lead out of the directory. They are
	// made as they are, and never followed.
	AnyLink bool
}

// EntryError says which entry of a stream was refused or failed.
type EntryError struct {
	Name string // as the stream has it
	Err  error
}

func (e *EntryError) Error() string {
	name := e.Name
	if len(name) > 256 {
		name = name[:256] + "..."
	}
	return fmt.Sprintf("entry %q: %v", name, e.Err)
}

// Unwrap returns the cause.
func (e *EntryError) Unwrap() error { return e.Err }

// ErrRefused marks entries that are refused for what they are, rather than
// failures to write them.
var ErrRefused = errors.New("refused")

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...)
}

// bare drops the path from an error of package os: the entry's name says it.
func bare(err error) error {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err
	}
	return err
}

// unexpected turns the end of a stream within an entry into a truncation.
func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
