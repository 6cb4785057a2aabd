//go:build linux

package server

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
)

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
