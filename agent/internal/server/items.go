//go:build linux

package server

import (
	"fmt"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
)

// maxItems bounds a list, so that neither side holds more than it can.
const maxItems = 1_000_000

// itemBatch is about how many bytes of items travel in one frame.
const itemBatch = 32 << 10

// items sends a list in parts: the server holds one part at a time.
type items[T any] struct {
	out   *wire.Writer
	batch []T
	size  int
	count int
}

func newItems[T any](out *wire.Writer) *items[T] { return &items[T]{out: out} }

// add adds an item of about size bytes.
func (i *items[T]) add(item T, size int) error {
	if i.count++; i.count > maxItems {
		return fmt.Errorf("more than %d entries", maxItems)
	}
	i.batch = append(i.batch, item)
	if i.size += size; i.size < itemBatch {
		return nil
	}
	return i.flush()
}

// flush sends what was added.
func (i *items[T]) flush() error {
	if len(i.batch) > 0 && !i.out.JSON(wire.TypeItems, i.batch) {
		return fmt.Errorf("an entry is too long")
	}
	i.batch, i.size = i.batch[:0], 0
	if i.out.Buffered() > bufferOutput {
		return i.out.Flush()
	}
	return nil
}
