//go:build linux

package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strings"
	"sync"
	"syscall"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/internal/tartree"
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

// unpacked is changed for an error of [tartree.UnpackRoot], whose entry is kept.
func (t *target) unpacked(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if e, ok := errors.AsType[*tartree.EntryError](err); ok {
		return &tartree.EntryError{Name: e.Name, Err: t.changed(e.Err)}
	}
	return t.changed(err)
}

// mkdirAll makes rel and its parents.
func (f *files) mkdirAll(t *target, rel string) error {
	if rel == "." {
		return nil
	}
	return t.changed(t.root.MkdirAll(rel, 0o755))
}

func (f *files) mkdir(req *wire.Request) error {
	return slowly(func() error {
		t, err := f.open("path", req.Path, false, true)
		if err != nil {
			return err
		}
		defer t.close()
		return f.mkdirAll(t, t.rel)
	})
}

// temporary returns a new name beside rel. It is what a killed agent would
// leave behind, so it says whose it is.
func temporary(rel string) string {
	var b [8]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	return path.Join(path.Dir(rel), ".capyrun-"+hex.EncodeToString(b[:])+".tmp")
}

// write replaces or extends a file by the client's data.
func (f *files) write(ctx context.Context, req *wire.Request, data io.Reader) error {
	var t *target
	var file *os.File
	temp := ""
	err := slowly(func() (err error) {
		if t, err = f.open("path", req.Path, true, true); err != nil {
			return err
		}
		file, temp, err = f.create(t, req)
		return err
	})
	if t != nil {
		defer t.close()
	}
	if err != nil {
		return err
	}
	defer func() {
		file.Close()
		if temp != "" {
			slowly(func() error { return t.root.Remove(temp) })
		}
	}()
	// Where the target is a FIFO or a device, a write may wait for its reader.
	defer context.AfterFunc(ctx, func() { file.SetWriteDeadline(past) })()

	if err := copyData(ctx, t, file, data); err != nil {
		return err
	}
	return slowly(func() error {
		if err := file.Close(); err != nil {
			return t.changed(err)
		}
		if temp == "" {
			return nil
		}
		if err := t.root.Rename(temp, t.rel); err != nil {
			return t.changed(err)
		}
		temp = ""
		return nil
	})
}

// create opens what the data goes to: a temporary file, named by temp, or the
// target itself where that is extended or is no regular file.
func (f *files) create(t *target, req *wire.Request) (file *os.File, temp string, err error) {
	mode := fs.FileMode(req.Mode) & fs.ModePerm
	fi, err := t.root.Lstat(t.rel)
	exists := err == nil
	switch {
	case exists && fi.IsDir():
		return nil, "", provider.ErrIsDirectory
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, "", t.changed(err)
	case !exists:
		if err := f.mkdirAll(t, path.Dir(t.rel)); err != nil {
			return nil, "", err
		}
	}
	if exists && !fi.Mode().IsRegular() {
		// Not to be replaced, and opening it must not wait.
		file, err := t.root.OpenFile(t.rel, os.O_WRONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
		if errors.Is(err, syscall.ENXIO) {
			err = errors.New("nothing reads from the other end")
		}
		return file, "", t.changed(err)
	}
	if mode == 0 && !(exists && req.Append) {
		mode = 0o644
		if exists {
			mode = fi.Mode().Perm()
		}
	}
	name, flags := t.rel, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK
	if !req.Append {
		temp = temporary(t.rel)
		name, flags = temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL
	}
	file, err = t.root.OpenFile(name, flags, 0o600)
	if err != nil {
		return nil, "", t.changed(err)
	}
	if mode != 0 {
		if f.shared {
			mode |= 0o444
		}
		if err := file.Chmod(mode); err != nil { // the umask does not apply
			file.Close()
			if temp != "" {
				t.root.Remove(temp)
			}
			return nil, "", t.changed(err)
		}
	}
	return file, temp, nil
}

var copyBuffers = sync.Pool{New: func() any { return new([wire.MaxData]byte) }}

// copyData writes all of data to file.
func copyData(ctx context.Context, t *target, file *os.File, data io.Reader) error {
	buf := copyBuffers.Get().(*[wire.MaxData]byte)
	defer copyBuffers.Put(buf)
	for {
		n, readErr := data.Read(buf[:])
		if n > 0 {
			err := slowly(func() error {
				_, err := file.Write(buf[:n])
				return err
			})
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			if err != nil {
				return t.changed(err)
			}
		}
		if readErr == io.EOF {
			return nil
		}
		if readErr != nil {
			return readErr
		}
	}
}

func (f *files) remove(ctx context.Context, req *wire.Request) error {
	t, err := f.open("path", req.Path, true, false)
	if err != nil {
		return err
	}
	defer t.close()
	var fi fs.FileInfo
	err = slowly(func() error {
		fi, err = t.root.Lstat(t.rel)
		return err
	})
	if err != nil {
		return t.changed(err)
	}
	return t.changed(removeTree(ctx, t.root, t.rel, fi.IsDir(), 0))
}

// cancellableDepth is down to where the removal of a directory heeds its
// cancellation between files; each level holds two file descriptors.
const cancellableDepth = 32

func removeTree(ctx context.Context, root *os.Root, rel string, isDir bool, depth int) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	if !isDir {
		return slowly(func() error { return root.Remove(rel) })
	}
	if depth == cancellableDepth {
		return slowly(func() error { return root.RemoveAll(rel) })
	}
	var sub *os.Root
	var dir *os.File
	err := slowly(func() (err error) {
		if sub, err = root.OpenRoot(rel); err != nil {
			return err
		}
		dir, err = sub.Open(".")
		return err
	})
	if sub != nil {
		defer sub.Close()
	}
	if errors.Is(err, fs.ErrPermission) {
		// An empty directory can be removed without being read.
		return slowly(func() error { return root.RemoveAll(rel) })
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	for {
		var entries []fs.DirEntry
		err := slowly(func() (err error) {
			entries, err = dir.ReadDir(256)
			return err
		})
		for _, e := range entries {
			if err := removeTree(ctx, sub, e.Name(), e.IsDir(), depth+1); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if err == io.EOF {
			return slowly(func() error { return root.RemoveAll(rel) })
		}
		if err != nil {
			return err
		}
	}
}

func (f *files) rename(ctx context.Context, req *wire.Request) error {
	from, err := f.open("from", req.Path, true, false)
	if err != nil {
		return err
	}
	defer from.close()
	to, err := f.open("to", req.To, true, false)
	if err != nil {
		return err
	}
	defer to.close()
	if from.place == to.place {
		err := slowly(func() error { return from.root.Rename(from.rel, to.rel) })
		if !errors.Is(err, syscall.EXDEV) {
			return to.changed(err)
		}
	}
	return f.move(ctx, from, to)
}

// move renames between two file systems: a copy beside the target is renamed,
// then the source is removed.
func (f *files) move(ctx context.Context, from, to *target) error {
	fi, err := from.root.Lstat(from.rel)
	if err != nil {
		return from.changed(err)
	}
	if old, err := to.root.Lstat(to.rel); err == nil && old.IsDir() != fi.IsDir() {
		if old.IsDir() {
			return provider.ErrIsDirectory
		}
		return provider.ErrNotDirectory
	}
	temp := temporary(to.rel)
	defer removeTree(context.Background(), to.root, temp, fi.IsDir(), 0) // nothing is there after success
	switch {
	case fi.IsDir():
		err = f.copyTree(ctx, from, to, temp, fi.Mode().Perm())
	case fi.Mode().IsRegular():
		err = f.copyFile(ctx, from, to, temp, fi.Mode().Perm())
	case fi.Mode()&fs.ModeSymlink != 0:
		var link string
		if link, err = from.root.Readlink(from.rel); err == nil {
			err = to.changed(to.root.Symlink(link, temp))
		}
	default:
		err = fmt.Errorf("a %s cannot be moved to another file system", fi.Mode().Type())
	}
	if err != nil {
		return err
	}
	if err := slowly(func() error { return to.root.Rename(temp, to.rel) }); err != nil {
		return to.changed(err)
	}
	return from.changed(removeTree(ctx, from.root, from.rel, fi.IsDir(), 0))
}

func (f *files) copyFile(ctx context.Context, from, to *target, temp string, mode fs.FileMode) error {
	src, err := from.root.OpenFile(from.rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return from.changed(err)
	}
	defer src.Close()
	dst, err := to.root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return to.changed(err)
	}
	defer dst.Close()
	if err := copyData(ctx, to, dst, src); err != nil {
		return err
	}
	if err := dst.Chmod(mode); err != nil {
		return to.changed(err)
	}
	return to.changed(dst.Close())
}

func (f *files) copyTree(ctx context.Context, from, to *target, temp string, mode fs.FileMode) error {
	if err := to.root.Mkdir(temp, 0o700); err != nil {
		return to.changed(err)
	}
	dst, err := to.root.OpenRoot(temp)
	if err != nil {
		return to.changed(err)
	}
	defer dst.Close()
	r, w := io.Pipe()
	packed := make(chan error, 1)
	go func() {
		err := tartree.Pack(ctx, w, from.host)
		w.CloseWithError(err)
		packed <- err
	}()
	err = tartree.UnpackRoot(ctx, r, dst, tartree.Limits{Bytes: unbounded, AnyLink: true})
	r.CloseWithError(io.ErrClosedPipe)
	if packErr := <-packed; packErr != nil && !errors.Is(packErr, io.ErrClosedPipe) {
		return from.changed(packErr)
	}
	if err != nil {
		return to.changed(err)
	}
	return to.changed(to.root.Chmod(temp, mode))
}

func (f *files) upload(ctx context.Context, req *wire.Request, data io.Reader) error {
	t, err := f.open("path", req.Path, false, true)
	if err != nil {
		return err
	}
	defer t.close()
	var root *os.Root
	err = slowly(func() error {
		if err := f.mkdirAll(t, t.rel); err != nil {
			return err
		}
		root, err = t.root.OpenRoot(t.rel)
		return t.changed(err)
	})
	if err != nil {
		return err
	}
	defer root.Close()
	return t.unpacked(ctx, slowly(func() error {
		return tartree.UnpackRoot(ctx, waitless{Reader: data}, root, tartree.Limits{Bytes: unbounded, Readable: f.shared})
	}))
}

// unbounded is for trees that take the sandbox's own space: the file system
// bounds them.
const unbounded = math.MaxInt64
