//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/internal/tartree"
	"github.com/capybara-hq/capyrun/provider"
)

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
