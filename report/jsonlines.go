package report

import (
	"encoding/json"
	"io"
	"sync"

	"github.com/capybara-hq/capyrun/event"
)

// JSONLines is an [event.Sink] that writes every event as one line of JSON, see
// [event.Event] for its fields. Bytes that are not UTF-8 become U+FFFD.
type JSONLines struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// NewJSONLines returns a sink that writes to w, one call per event.
func NewJSONLines(w io.Writer) *JSONLines { return &JSONLines{w: w} }

// Emit writes an event.
func (j *JSONLines) Emit(e event.Event) {
	b, err := json.Marshal(e)
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err != nil {
		return
	}
	if err == nil {
		_, err = j.w.Write(append(b, '\n'))
	}
	j.err = err
}

// Err returns the first failure. No event was written after it.
func (j *JSONLines) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.err
}
