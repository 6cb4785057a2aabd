//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/internal/tartree"
	"github.com/capybara-hq/capyrun/provider"
	"golang.org/x/sys/unix"
)

// readable returns where the path of a request that only reads is.
func (c *call) readable() (string, error) {
	clean, err := provider.CleanPath("path", string(c.req.Path))
	if err != nil {
		return "", err
	}
	return c.session.server.files.host(clean), nil
}

// bulk is how much of a file travels in one write, since each wakes up several
// processes on the way through an engine. What has as much is a transfer.
const bulk = 128 << 10

// dataWriter sends what is written to it as data frames.
type dataWriter struct {
	ctx  context.Context
	call *call
}

func (w dataWriter) Write(p []byte) (int, error) {
	if cause := context.Cause(w.ctx); cause != nil {
		return 0, cause
	}
	w.call.moves(len(p))
	out := w.call.out
	out.Raw(wire.TypeData, p)
	if out.Buffered() >= bulk {
		return len(p), out.Flush()
	}
	return len(p), nil
}

// read sends a file, or a part of it.
func (c *call) read(ctx context.Context) *wire.Response {
	name, err := c.readable()
	if err != nil {
		return failure(err)
	}
	if err := (provider.ReadOptions{Offset: c.req.Offset, Max: c.req.Max}).Validate(); err != nil {
		return failure(err)
	}
	var f *os.File
	var fi fs.FileInfo
	err = slowly(func() (err error) {
		// O_NONBLOCK: opening a FIFO must not wait for its writer.
		f, err = os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0)
		if err != nil {
			return err
		}
		if fi, err = f.Stat(); err != nil {
			return err
		}
		if fi.IsDir() {
			return provider.ErrIsDirectory
		}
		if c.req.Offset > 0 {
			_, err = f.Seek(c.req.Offset, io.SeekStart)
		}
		return err
	})
	if f != nil {
		defer f.Close()
		defer context.AfterFunc(ctx, func() { f.SetReadDeadline(past) })()
	}
	if err != nil {
		return failure(mapped(err))
	}

	w := dataWriter{ctx, c}
	buf := copyBuffers.Get().(*[wire.MaxData]byte)
	defer copyBuffers.Put(buf)
	left := c.req.Max
	for c.req.Max == 0 || left > 0 {
		part := buf[:]
		if c.req.Max > 0 {
			part = buf[:min(left, int64(len(buf)))]
		}
		n := 0
		err := slowly(func() (err error) {
			n, err = f.Read(part)
			return err
		})
		left -= int64(n)
		if n > 0 {
			if _, err := w.Write(part[:n]); err != nil {
				return failure(err)
			}
		}
		if err == io.EOF {
			return &wire.Response{Size: fi.Size()}
		}
		if cause := context.Cause(ctx); cause != nil {
			return failure(cause)
		}
		if err != nil {
			return failure(mapped(err))
		}
	}
	more := false
	slowly(func() error {
		n, _ := f.Read(buf[:1])
		more = n > 0
		return nil
	})
	return &wire.Response{Size: fi.Size(), Truncated: more}
}

func describeFile(name string, fi fs.FileInfo) *wire.File {
	f := &wire.File{Path: []byte(name), Kind: provider.KindOther, Mode: uint32(fi.Mode().Perm()), ModTime: fi.ModTime().UnixNano()}
	switch {
	case fi.Mode().IsRegular():
		f.Kind, f.Size = provider.KindFile, fi.Size()
	case fi.IsDir():
		f.Kind = provider.KindDirectory
	case fi.Mode()&fs.ModeSymlink != 0:
		f.Kind = provider.KindSymlink
	}
	return f
}

func (c *call) stat() *wire.Response {
	name, err := c.readable()
	if err != nil {
		return failure(err)
	}
	var fi fs.FileInfo
	err = slowly(func() error {
		fi, err = os.Stat(name)
		return err
	})
	if err != nil {
		return failure(mapped(err))
	}
	return &wire.Response{File: describeFile(c.session.server.files.shown(name), fi)}
}

// maxPending bounds the names of directories that a walk has still to read, in
// bytes.
const maxPending = 16 << 20

// tooLong says where a listing could not go on, since a path there is longer
// than the kernel takes.
func tooLong(dir string) error {
	const most = 128
	if len(dir) > most {
		dir = dir[:most/2] + "..." + dir[len(dir)-most/2:]
	}
	return fmt.Errorf("what is in %q cannot be listed: %w", dir, syscall.ENAMETOOLONG)
}

// passed reports whether a listing goes on without what cannot be read for err:
// it has disappeared or changed meanwhile, or may not be read.
func passed(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) ||
		errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// readDir sends the entries of a directory in no order.
func (c *call) readDir(ctx context.Context) error {
	root, err := c.readable()
	if err != nil {
		return err
	}
	list := newItems[*wire.File](c.out)
	todo, pending := []string{""}, 0
	for len(todo) > 0 {
		rel := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		pending -= len(rel)
		var d *os.File
		err := slowly(func() (err error) {
			d, err = os.OpenFile(filepath.Join(root, rel), os.O_RDONLY|syscall.O_DIRECTORY|syscall.O_NONBLOCK, 0)
			return err
		})
		switch {
		case err == nil:
		case errors.Is(err, syscall.ENAMETOOLONG):
			return tooLong(rel)
		case rel != "" && passed(err):
			continue // listed itself, without content
		default:
			return mapped(err)
		}
		for {
			if cause := context.Cause(ctx); cause != nil {
				d.Close()
				return cause
			}
			var files []*wire.File
			err := slowly(func() error {
				entries, err := d.ReadDir(128)
				for _, e := range entries {
					fi, err := e.Info()
					switch {
					case err == nil:
					case errors.Is(err, syscall.ENAMETOOLONG):
						return tooLong(rel)
					case passed(err) && (rel != "" || !errors.Is(err, fs.ErrPermission)):
						continue // it is gone, or the directory may not be searched
					default:
						return err
					}
					f := describeFile(path.Join(rel, e.Name()), fi)
					if f.Kind == provider.KindSymlink {
						target, _ := os.Readlink(filepath.Join(root, rel, e.Name()))
						f.Target = []byte(target)
					}
					files = append(files, f)
				}
				return err
			})
			for _, f := range files {
				if c.req.Recursive && f.Kind == provider.KindDirectory {
					todo = append(todo, string(f.Path))
					if pending += len(f.Path); pending > maxPending {
						d.Close()
						return errors.New("the directory tree is too large to be listed")
					}
				}
				if err := list.add(f, 128+2*len(f.Path)+2*len(f.Target)); err != nil {
					d.Close()
					return err
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				d.Close()
				return mapped(err)
			}
		}
		d.Close()
	}
	return list.flush()
}

// glob sends the paths that match a pattern, in the pattern's own form: relative
// to /workspace where the pattern is.
func (c *call) glob(ctx context.Context) error {
	pattern := string(c.req.Path)
	if _, err := provider.CleanPath("pattern", pattern); err != nil {
		return err
	}
	// Braces have no meaning in our patterns.
	escaped := strings.NewReplacer("{", `\{`, "}", `\}`).Replace(pattern)
	base, rest, shown := c.session.server.files.host(provider.Workspace), escaped, ""
	if path.IsAbs(escaped) {
		var fixed string
		fixed, rest = doublestar.SplitPattern(escaped)
		shown = strings.NewReplacer(`\`, "").Replace(fixed)
		base = c.session.server.files.host(path.Clean(shown))
	}
	rest = path.Clean(rest)
	if !doublestar.ValidatePattern(rest) {
		return &provider.InvalidError{Field: "pattern", Value: pattern, Reason: "is malformed: an open [ or a \\ at the end"}
	}
	if rest == ".." || strings.HasPrefix(rest, "../") {
		return &provider.InvalidError{Field: "pattern", Value: pattern, Reason: `must not lead out by ".."; give it from / on`}
	}
	list := newItems[[]byte](c.out)
	fsys := &slowFS{FS: os.DirFS(base), base: base}
	err := doublestar.GlobWalk(fsys, rest, func(name string, _ fs.DirEntry) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		name = path.Join(shown, name)
		return list.add([]byte(name), 8+2*len(name))
	}, doublestar.WithNoFollow())
	if err != nil {
		return mapped(err)
	}
	if fsys.tooLong != "" {
		return tooLong(path.Join(shown, fsys.tooLong))
	}
	return list.flush()
}

// slowFS takes a slot for each call. It notes the first path that is too long
// for the kernel, which the walk passes over as if nothing were there.
type slowFS struct {
	fs.FS
	base    string
	tooLong string
}

// note looks at the result of a call. An element of a pattern that is too long
// for any file is no reason to fail: nothing has that name.
func (s *slowFS) note(name string, err error) {
	if s.tooLong == "" && errors.Is(err, syscall.ENAMETOOLONG) && len(s.base)+len("/")+len(name) >= unix.PathMax {
		s.tooLong = name
	}
}

func (s *slowFS) Open(name string) (f fs.File, err error) {
	err = slowly(func() error {
		f, err = s.FS.Open(name)
		return err
	})
	s.note(name, err)
	return f, err
}

func (s *slowFS) Stat(name string) (fi fs.FileInfo, err error) {
	err = slowly(func() error {
		fi, err = fs.Stat(s.FS, name)
		return err
	})
	s.note(name, err)
	return fi, err
}

func (s *slowFS) ReadDir(name string) (list []fs.DirEntry, err error) {
	err = slowly(func() error {
		list, err = fs.ReadDir(s.FS, name)
		return err
	})
	s.note(name, err)
	return list, err
}

// download sends a file or a directory as a tar stream.
func (c *call) download(ctx context.Context) error {
	name, err := c.readable()
	if err != nil {
		return err
	}
	err = slowly(func() error { return tartree.Pack(ctx, waitless{Writer: dataWriter{ctx, c}}, name) })
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok && e.Path != name {
		return fmt.Errorf("%s: %w", strings.TrimPrefix(e.Path, name+"/"), mapped(err))
	}
	return mapped(err)
}
