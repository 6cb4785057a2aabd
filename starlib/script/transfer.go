package script

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/capybara-hq/capyrun/internal/place"
	"github.com/capybara-hq/capyrun/internal/tartree"
)

// MaxDownload bounds in bytes what a file, or all files of a tree together, may
// write to the host: their source may be hostile, and the host's disk is shared.
const MaxDownload = int64(8) << 30

// Source is a file or directory of the host that goes into a sandbox.
type Source struct {
	File *os.File // a regular file, to be closed; nil for a directory

	dir  string // the path of a directory, all links in it resolved
	fsys fs.FS  // a directory of an embedded file system
}

// Open opens a file or directory of the host for sending it somewhere.
func (f *Files) Open(name string) (s Source, mode fs.FileMode, err error) {
	p, rel, err := f.find(name)
	if err != nil {
		return s, 0, err
	}
	info, err := fs.Stat(p.fsys, rel)
	if err != nil {
		return s, 0, escaped(name, err)
	}
	switch {
	case info.IsDir() && p.root == nil:
		s.fsys, err = fs.Sub(p.fsys, rel)
	case info.IsDir():
		// The check above has shown that the directory lies within the place;
		// the resolved path keeps links that are made later out of it.
		s.dir, err = filepath.EvalSymlinks(filepath.Join(p.dir, filepath.FromSlash(rel)))
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%q is neither a file nor a directory", name)
	case p.root == nil:
		err = fmt.Errorf("%q: only directories of an embedded file system can be uploaded", name)
	default:
		s.File, err = p.root.Open(filepath.FromSlash(rel))
	}
	return s, info.Mode().Perm(), err
}

// Tar writes a directory as a tar stream.
func (s Source) Tar(ctx context.Context, w io.Writer) error {
	if s.fsys == nil {
		return tartree.Pack(ctx, w, s.dir)
	}
	tw := tar.NewWriter(w)
	return errors.Join(tw.AddFS(s.fsys), tw.Close())
}

// Untar unpacks a tar stream into a directory, see [place.Tree].
func (t Target) Untar(ctx context.Context, r io.Reader) error {
	// The root refuses a path that an earlier download's links lead out of.
	if err := t.root.MkdirAll(filepath.Dir(t.rel), 0o777); err != nil {
		return err
	}
	return place.Tree(ctx, t.root, t.rel, r, tartree.Limits{Bytes: MaxDownload})
}
