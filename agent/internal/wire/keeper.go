package wire

import (
	"unicode/utf8"

	"github.com/capybara-hq/capyrun/provider"
)

// Keeper decides what is kept of a command's output: the first bytes of both
// streams together, in the order in which they come.
type Keeper struct {
	left int64
	cut  [2]bool
}

// NewKeeper returns a Keeper of limit bytes.
func NewKeeper(limit int64) Keeper { return Keeper{left: limit} }

// Keep returns the part of data that is kept.
func (k *Keeper) Keep(s provider.Stream, data []byte) []byte {
	if int64(len(data)) > k.left {
		data = data[:k.left]
		k.cut[Index(s)] = true
	}
	k.left -= int64(len(data))
	return data
}

// Cut reports whether data of the stream was dropped.
func (k *Keeper) Cut(s provider.Stream) bool { return k.cut[Index(s)] }

// Index is 0 for standard output and 1 for standard error.
func Index(s provider.Stream) int {
	if s == provider.Stderr {
		return 1
	}
	return 0
}

// TrimCut removes the incomplete UTF-8 character that a cut may have left at
// the end of b. Bytes that are no text are left alone.
func TrimCut(b []byte) []byte {
	for n := 1; n < utf8.UTFMax && n <= len(b); n++ {
		if c := b[len(b)-n]; utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-n:]) {
				return b[:len(b)-n]
			}
			break
		}
	}
	return b
}

// TrimHead removes what is left at the start of b of a character whose first
// bytes were dropped.
func TrimHead(b []byte) []byte {
	for n := 0; n < utf8.UTFMax && n < len(b); n++ {
		if utf8.RuneStart(b[n]) {
			return b[n:]
		}
	}
	return b
}
