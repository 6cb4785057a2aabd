//go:build linux

package server

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/capybara-hq/capyrun/provider"
)

// Place is a directory in which files may be changed. Name is its path as
// clients know it, Dir where it is; they differ for /skills, which only the
// provider's own server may write, and in tests.
type Place struct{ Name, Dir string }

// files works on files. Reads go wherever the kernel lets them. A change is
// confined twice: its path and every link in it is resolved and must lead to
// one of the places, and the change itself is made through an [os.Root] of that
// place. A first process has no more rights than the sandbox's own code, which
// gains nothing by moving links about in between; the server for /skills is
// root, and there it is the Root that holds.
type files struct {
	places []Place
	shared bool // what is written is for everybody to read
}

func newFiles(places []Place, shared bool) *files { return &files{places: places, shared: shared} }

// slots bounds the file system calls that run at once: each may need a thread,
// and threads count against the sandbox's process limit, where a Go program
// that gets none dies.
var slots = make(chan struct{}, 8)

// slowly runs f, which may wait for a disk.
func slowly(f func() error) error {
	slots <- struct{}{}
	defer func() { <-slots }()
	return f()
}

// waitless lends the slot that its user holds while it waits for the other
// side: a tree is packed and unpacked under a slot, but not its transport.
type waitless struct {
	io.Reader
	io.Writer
}

func (w waitless) Read(p []byte) (int, error) {
	<-slots
	defer func() { slots <- struct{}{} }()
	return w.Reader.Read(p)
}

func (w waitless) Write(p []byte) (int, error) {
	<-slots
	defer func() { slots <- struct{}{} }()
	return w.Writer.Write(p)
}

// host returns where the clean path p is.
func (f *files) host(p string) string {
	for _, place := range f.places {
		if p == place.Name {
			return place.Dir
		}
		if rest, ok := strings.CutPrefix(p, place.Name+"/"); ok {
			return path.Join(place.Dir, rest)
		}
	}
	return p
}

// shown is the inverse of host.
func (f *files) shown(p string) string {
	for _, place := range f.places {
		if p == place.Dir {
			return place.Name
		}
		if rest, ok := strings.CutPrefix(p, place.Dir+"/"); ok {
			return path.Join(place.Name, rest)
		}
	}
	return p
}

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// resolve returns where p leads when links are followed, in the last element
// only where followLast is set. What does not exist is taken as it is written.
func (f *files) resolve(p string, followLast bool) (string, error) {
	rest := strings.Split(strings.Trim(f.host(p), "/"), "/")
	done := "/"
	for links := 0; len(rest) > 0; {
		elem := rest[0]
		rest = rest[1:]
		switch elem {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, elem)
		if len(rest) == 0 && !followLast {
			return next, nil
		}
		target, err := os.Readlink(next)
		switch {
		case err == nil:
			if links++; links > maxLinks {
				return "", &fs.PathError{Op: "resolve", Path: p, Err: syscall.ELOOP}
			}
			if path.IsAbs(target) {
				target, done = f.host(path.Clean(target)), "/"
			}
			rest = append(strings.Split(target, "/"), rest...)
			if len(rest) > provider.MaxPath {
				return "", &fs.PathError{Op: "resolve", Path: p, Err: syscall.ENAMETOOLONG}
			}
		case errors.Is(err, syscall.EINVAL) || errors.Is(err, fs.ErrNotExist):
			done = next
		default:
			return "", mapped(err)
		}
	}
	return done, nil
}

// target is a path that may be changed.
type target struct {
	root  *os.Root
	rel   string // within root; "." is the place itself
	place Place
	host  string
}

func (t *target) close() { t.root.Close() }

// open resolves a path that a client wants to change. strictly excludes the
// places themselves.
func (f *files) open(field string, p []byte, strictly, followLast bool) (*target, error) {
	clean, err := provider.CleanWritePath(field, string(p), strictly)
	if err != nil {
		return nil, err
	}
	real, err := f.resolve(clean, followLast)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, place := range f.places {
		names = append(names, place.Name)
		rel, below := ".", real == place.Dir
		if !below {
			rel, below = strings.CutPrefix(real, place.Dir+"/")
		}
		if !below {
			continue
		}
		if strictly && rel == "." {
			break
		}
		root, err := os.OpenRoot(place.Dir)
		if err != nil {
			return nil, mapped(err)
		}
		return &target{root: root, rel: rel, place: place, host: real}, nil
	}
	shown := f.shown(real)
	reason := "must stay in " + strings.Join(names, " or ")
	if shown != clean {
		reason = fmt.Sprintf("leads to %s, and %s", shown, reason)
	}
	return nil, &provider.InvalidError{Field: field, Value: string(p), Reason: reason}
}

// mapped gives an error the kind that clients match, and drops the path, which
// the client knows.
func mapped(err error) error {
	if err == nil {
		return nil
	}
	cause := bare(err)
	switch {
	case errors.Is(cause, syscall.EISDIR):
		return provider.ErrIsDirectory
	case errors.Is(cause, syscall.ENOTDIR):
		return provider.ErrNotDirectory
	case errors.Is(cause, syscall.ENOTEMPTY):
		return fmt.Errorf("%w: the directory is not empty", fs.ErrExist)
	}
	return cause
}

// changed is mapped for a change within a place, which may be full.
func (t *target) changed(err error) error {
	switch cause := bare(err); {
	case err == nil:
		return nil
	case errors.Is(cause, syscall.ENOSPC), errors.Is(cause, syscall.EDQUOT):
		return fmt.Errorf("%w in %s: %w", provider.ErrNoSpace, t.place.Name, cause)
	case errors.Is(cause, syscall.EROFS):
		return fmt.Errorf("%s is read-only: %w", t.place.Name, fs.ErrPermission)
	}
	return mapped(err)
}
