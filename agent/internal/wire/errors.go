package wire

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/capybara-hq/capyrun/provider"
)

// Error is an operation's failure as it travels.
type Error struct {
	// Kind is one of [provider.KindOf]'s words; empty for other failures.
	Kind    string `json:"kind,omitempty"`
	Message string `json:"message"`
	// Field and Value make it a [provider.InvalidError], with Message as Reason.
	Field string `json:"field,omitempty"`
	Value []byte `json:"value,omitempty"`
}

// kinds are those that an agent reports of itself. Others, such as a lost
// session, are for the client to say.
var kinds = map[string]error{
	string(provider.ErrInvalid):      provider.ErrInvalid,
	string(provider.ErrGone):         provider.ErrGone,
	string(provider.ErrNotStarted):   provider.ErrNotStarted,
	string(provider.ErrIsDirectory):  provider.ErrIsDirectory,
	string(provider.ErrNotDirectory): provider.ErrNotDirectory,
	string(provider.ErrNoSpace):      provider.ErrNoSpace,
	string(provider.ErrUnsupported):  provider.ErrUnsupported,
	"not found":                      fs.ErrNotExist,
	"file exists":                    fs.ErrExist,
	"permission denied":              fs.ErrPermission,
	"connection refused":             syscall.ECONNREFUSED,
	"canceled":                       context.Canceled,
}

// maxMessage bounds a message that travels, in bytes.
const maxMessage = 4 << 10

// EncodeError returns err as it travels.
func EncodeError(err error) *Error {
	if err == nil {
		return nil
	}
	if invalid, ok := errors.AsType[*provider.InvalidError](err); ok {
		return &Error{
			Kind: string(provider.ErrInvalid), Message: printable(invalid.Reason), Field: invalid.Field,
			Value: []byte(invalid.Value[:min(len(invalid.Value), maxMessage)]),
		}
	}
	e := &Error{Kind: provider.KindOf(err), Message: printable(err.Error())}
	if _, known := kinds[e.Kind]; !known {
		e.Kind = ""
	}
	return e
}

// Decode returns e as an error for the client's callers. It comes from an
// untrusted peer: the text is made printable and short, and only kinds that are
// an agent's to report match.
func (e *Error) Decode() error {
	if e.Kind == string(provider.ErrInvalid) && e.Field != "" {
		return &provider.InvalidError{Field: printable(e.Field), Value: printable(string(e.Value)), Reason: printable(e.Message)}
	}
	return &remoteError{message: printable(e.Message), kind: kinds[e.Kind]}
}

type remoteError struct {
	message string
	kind    error // may be nil
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.kind }

// printable replaces what a terminal could act upon and shortens the rest.
func printable(s string) string {
	if len(s) > maxMessage {
		s = s[:maxMessage]
	}
	clean := func(r rune) rune {
		if r == utf8.RuneError || r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}
	return strings.Map(clean, s)
}
