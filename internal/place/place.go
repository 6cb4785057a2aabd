// Package place puts files and trees on the host so that they appear complete
// or not at all.
package place

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/capybara-hq/capyrun/internal/tartree"
)

// temporary is a name for what is not complete yet, beside its place.
func temporary(name string) string {
	return filepath.Join(filepath.Dir(name), ".capyrun-"+rand.Text())
}

// File writes a file of at most limit bytes. It replaces a file or link of that
// name once all of data is written; after a failure the old one is there as it
// was, and nothing else. A link that leads out of root is refused: whoever made
// it expects the file at its end to be written.
func File(root *os.Root, name string, data io.Reader, mode fs.FileMode, limit int64) (err error) {
	if info, err := root.Stat(name); err == nil && info.IsDir() {
		return &fs.PathError{Op: "write", Path: name, Err: errors.New("is a directory")}
	} else if err == nil && !info.Mode().IsRegular() {
		// Replacing /dev/null would break the machine.
		return &fs.PathError{Op: "write", Path: name, Err: errors.New("is a device, a FIFO or a socket, which is not replaced")}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := temporary(name)
	file, err := root.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode.Perm())
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.Remove(temp))
		}
	}()
	n, err := io.Copy(file, io.LimitReader(data, limit+1))
	if err == nil && n > limit {
		err = fmt.Errorf("more than the %d bytes that a file of the host may have", limit)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return root.Rename(temp, name)
}

// Tree unpacks a tar stream into the directory of that name. Where there is none
// yet, it appears once it is complete. One that exists is added to, and then
// keeps what came before a failure, as the error says.
func Tree(ctx context.Context, root *os.Root, name string, tar io.Reader, limits tartree.Limits) (err error) {
	if _, err := root.Lstat(name); err == nil {
		if err := unpack(ctx, root, name, tar, limits); err != nil {
			return fmt.Errorf("%w (what came until then is left in %s)", err, name)
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temp := temporary(name)
	if err := root.Mkdir(temp, 0o777); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, root.RemoveAll(temp))
		}
	}()
	if err := unpack(ctx, root, temp, tar, limits); err != nil {
		return err
	}
	return root.Rename(temp, name)
}

func unpack(ctx context.Context, root *os.Root, name string, tar io.Reader, limits tartree.Limits) error {
	dir, err := root.OpenRoot(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	return tartree.UnpackRoot(ctx, tar, dir, limits)
}
