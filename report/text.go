package report

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Clean makes text from a sandbox or a script safe to show on a terminal:
// escape sequences and control characters are removed, as are the invisible
// format characters that reorder text. Newlines and tabs stay.
func Clean(s string) string {
	if utf8.ValidString(s) && !strings.ContainsFunc(s, control) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		if n := escape(s[i:]); n > 0 {
			i += n
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && n == 1:
			b.WriteRune(unicode.ReplacementChar)
		case !control(r):
			b.WriteString(s[i : i+n])
		}
		i += n
	}
	return b.String()
}

func control(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Cf, r))
}

// escape returns the length of the escape sequence that s begins with, see
// ECMA-48. One that never ends is cut where a control character breaks it off,
// or at the end of s.
func escape(s string) int {
	body, intro := 0, byte(0)
	switch {
	case len(s) >= 2 && s[0] == 0x1b:
		body, intro = 2, s[1]
	case len(s) >= 2 && s[0] == 0xc2 && s[1] >= 0x80 && s[1] <= 0x9f: // a C1 control as UTF-8
		body, intro = 2, s[1]-0x40
	default:
		return 0
	}
	switch intro {
	case '[':
		for i := body; i < len(s); i++ {
			if c := s[i]; c >= 0x40 && c <= 0x7e {
				return i + 1
			} else if c < 0x20 {
				return i
			}
		}
		return len(s)
	case ']', 'P', 'X', '^', '_': // strings: to BEL or ST
		for i := body; i < len(s); i++ {
			switch {
			case s[i] == 0x07:
				return i + 1
			case s[i] == 0x1b && i+1 < len(s) && s[i+1] == '\\', strings.HasPrefix(s[i:], "\u009c"):
				return i + 2
			case s[i] == '\n':
				return i
			}
		}
		return len(s)
	}
	if s[0] != 0x1b {
		return body
	}
	for i := 1; i < len(s); i++ { // intermediates, then one final byte
		if c := s[i]; c >= 0x30 && c <= 0x7e {
			return i + 1
		} else if c < 0x20 || c > 0x2f {
			return i
		}
	}
	return len(s)
}

// line is s on one line of clean text.
func line(s string) string {
	return strings.TrimSpace(strings.NewReplacer("\n", " ", "\t", " ").Replace(Clean(s)))
}

// width is the number of terminal columns that clean text takes.
func width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

func runeWidth(r rune) int {
	switch {
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case r >= 0x1100 && (r <= 0x115f || // Hangul Jamo
		r >= 0x2e80 && r <= 0xa4cf || // CJK to Yi
		r >= 0xac00 && r <= 0xd7a3 || // Hangul
		r >= 0xf900 && r <= 0xfaff ||
		r >= 0xfe30 && r <= 0xfe6f ||
		r >= 0xff00 && r <= 0xff60 || // full width forms
		r >= 0x1f300 && r <= 0x1faff || // pictographs
		r >= 0x20000 && r <= 0x3fffd):
		return 2
	}
	return 1
}

// fit shortens clean text to at most columns.
func fit(s string, columns int) string {
	if width(s) <= columns {
		return s
	}
	const mark = "..."
	if columns <= len(mark) {
		return mark[:max(columns, 0)]
	}
	n := 0
	for i, r := range s {
		n += runeWidth(r)
		if n > columns-len(mark) {
			return s[:i] + mark
		}
	}
	return s
}

// seconds writes a duration for people.
func seconds(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", d.Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	return d.Round(time.Second).String()
}
