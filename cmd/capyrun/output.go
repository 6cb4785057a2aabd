package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"syscall"
	"text/tabwriter"
)

// output is stdout. It remembers the first failure to write, and takes
// everything after it: whoever reads may have seen enough.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	if o.err == nil {
		_, o.err = o.w.Write(b)
	}
	return len(b), nil
}

// closed reports that nobody reads any more.
func (o *output) closed() bool { return errors.Is(o.err, syscall.EPIPE) }

// failure is the error of writing, where that is one: a reader that left is none.
func (o *output) failure() error {
	if o.err == nil || o.closed() {
		return nil
	}
	err := o.err
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err // the path is only "/dev/stdout"
	}
	return &writeError{"stdout", err}
}

// writeError is something that the user asked for and that could not be written.
type writeError struct {
	to  string
	err error
}

func (e *writeError) Error() string { return "write to " + e.to + ": " + e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// json writes a value as indented JSON.
func (o *output) json(v any) error {
	b, err := marshal(v, "  ")
	if err == nil {
		o.Write(b)
	}
	return err
}

// marshal writes JSON for people: text stays as it is.
func marshal(v any, indent string) ([]byte, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	err := enc.Encode(v)
	return []byte(b.String()), err
}

// table writes rows in columns, the first row being the heads.
func (o *output) table(rows [][]string) {
	t := tabwriter.NewWriter(o, 0, 0, 3, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	t.Flush()
}
