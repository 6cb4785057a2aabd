package report

import (
	"fmt"
	"slices"
	"strings"
)

// Colours, as the parameters of "select graphic rendition".
const (
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func paint(on bool, colour, s string) string {
	if !on {
		return s
	}
	return "\x1b[" + colour + "m" + s + "\x1b[0m"
}

// screen draws a live area at the end of a terminal's output. It is pure: it
// turns frames into the bytes that show them.
type screen struct {
	colour bool
	drawn  []frameLine // the area as it stands
	hidden bool        // the cursor
}

// frameLine is a line of the live area, no wider than the terminal.
type frameLine struct {
	text string
	dim  bool
}

// render lays rows out for a terminal of the given size. The area takes half
// of the height at most: the rest is for what was printed.
func render(rows []row, columns, height int) []frameLine {
	most := max(height/2, 1)
	var lines []frameLine
	for i, r := range rows {
		if i == most-1 && len(rows) > most {
			lines = append(lines, frameLine{fit(fmt.Sprintf("  ... and %d more", len(rows)-i), columns-1), true})
			break
		}
		indent := strings.Repeat("  ", min(r.depth, 10))
		// The last column stays free: a terminal may wrap when it is written to.
		room := columns - 1 - len(indent) - 2 - len(r.time)
		text := fit(r.text, max(room, 1))
		lines = append(lines, frameLine{strings.TrimRight(fit(indent+text+"  "+r.time, columns-1), " "), r.dim})
	}
	return lines
}

// update returns what to write so that the lines of above scroll away above
// the area, and the area shows frame. It is empty where nothing changes.
func (s *screen) update(above []string, frame []frameLine, columns int) string {
	if len(above) == 0 && slices.Equal(frame, s.drawn) {
		return ""
	}
	var b strings.Builder
	if !s.hidden {
		b.WriteString("\x1b[?25l") // hide the cursor
		s.hidden = true
	}
	s.erase(&b, columns)
	for _, l := range above {
		b.WriteString(l + "\n")
	}
	for _, l := range frame {
		b.WriteString(paint(s.colour && l.dim, dim, l.text) + "\n")
	}
	s.drawn = frame
	return b.String()
}

// erase removes the area. A terminal that was made narrower since has wrapped
// its lines, so that they take more rows.
func (s *screen) erase(b *strings.Builder, columns int) {
	up := 0
	for _, l := range s.drawn {
		up += max(1, (width(l.text)+columns-1)/columns)
	}
	if up > 0 {
		fmt.Fprintf(b, "\r\x1b[%dA\x1b[J", up)
	}
	s.drawn = nil
}

// close returns what to write to remove the area and show the cursor again.
func (s *screen) close(columns int) string {
	if !s.hidden {
		return ""
	}
	var b strings.Builder
	s.erase(&b, columns)
	s.hidden = false
	return b.String() + "\x1b[?25h"
}
