//go:build linux

package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"sync"
	"syscall"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/internal/tartree"
	"github.com/capybara-hq/capyrun/provider"
)

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
