package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/capybara-hq/capyrun/internal/place"
)

// maxHostRead bounds what host.read returns. Scripts hold it in memory.
const maxHostRead = 64 << 20

// Files is what scripts may touch of the host: the workflow's directory and
// further ones to read, one to write. No path leads out of them, neither by ..
// nor by symbolic links. Its methods are safe to call at once.
type Files struct {
	places []readable // the workflow's directory comes first

	outDir string // empty: nothing may be written
	mu     sync.Mutex
	out    *os.Root // opened when it is first needed
}

// readable is a directory that may be read.
type readable struct {
	dir  string // absolute path on the host; empty for an fs.FS
	fsys fs.FS
	root *os.Root // nil for an fs.FS
}

// OpenFiles opens the directories. Either fsys or dir is the workflow's; extra
// are others to read and out, if not empty, the one to write, which is made when
// something is written.
func OpenFiles(fsys fs.FS, dir string, extra []string, out string) (*Files, error) {
	f := &Files{outDir: out}
	if fsys != nil {
		f.places = append(f.places, readable{fsys: fsys})
	} else {
		extra = append([]string{dir}, extra...)
	}
	for _, dir := range extra {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		root, err := os.OpenRoot(abs)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		f.places = append(f.places, readable{abs, root.FS(), root})
	}
	return f, nil
}

// Close releases the directories.
func (f *Files) Close() error {
	var errs []error
	for _, p := range f.places {
		if p.root != nil {
			errs = append(errs, p.root.Close())
		}
	}
	if f.out != nil {
		errs = append(errs, f.out.Close())
	}
	return errors.Join(errs...)
}

// FS is the workflow's directory.
func (f *Files) FS() fs.FS { return f.places[0].fsys }

// find returns the place that holds name and the path within it. Relative
// names are relative to the workflow's directory.
func (f *Files) find(name string) (readable, string, error) {
	if name == "" || strings.IndexByte(name, 0) >= 0 {
		return readable{}, "", fmt.Errorf("%q is not a path", name)
	}
	first := f.places[0]
	if !filepath.IsAbs(name) {
		if rel := path.Clean(filepath.ToSlash(name)); fs.ValidPath(rel) {
			return first, rel, nil
		}
		if first.dir == "" {
			return readable{}, "", outside(name)
		}
	}
	abs := name
	if !filepath.IsAbs(name) {
		abs = filepath.Join(first.dir, name)
	}
	for _, p := range f.places {
		if p.dir == "" {
			continue
		}
		if rel, err := filepath.Rel(p.dir, abs); err == nil && filepath.IsLocal(rel) {
			return p, filepath.ToSlash(rel), nil
		}
	}
	return readable{}, "", outside(name)
}

func outside(name string) error {
	return &Failure{
		Msg:  fmt.Sprintf("%q is outside the workflow's directory", name),
		Hint: "--allow-read DIR lets scripts read another directory",
	}
}

// escaped turns the error of a path that leads out by links into one that says
// what to do.
func escaped(name string, err error) error {
	// os.Root has no sentinel for this.
	if err != nil && strings.Contains(err.Error(), "path escapes from parent") {
		return outside(name)
	}
	return err
}

// Read returns the content of a regular file of the host.
func (f *Files) Read(name string) ([]byte, error) {
	p, rel, err := f.find(name)
	if err != nil {
		return nil, err
	}
	data, err := ReadRegular(p.fsys, rel, maxHostRead)
	return data, escaped(name, err)
}

// ReadRegular reads a regular file of at most limit bytes. Others are refused:
// opening a FIFO would wait for a writer and could not be cancelled.
func ReadRegular(fsys fs.FS, name string, limit int64) ([]byte, error) {
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("it is a directory")}
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: name, Err: errors.New("not a regular file")}
	}
	file, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("larger than %d bytes", limit)}
	}
	return data, err
}

// Glob returns the files of the host that match a pattern, sorted, in the form
// in which the pattern was given.
func (f *Files) Glob(ctx context.Context, pattern string) ([]string, error) {
	if !doublestar.ValidatePattern(filepath.ToSlash(pattern)) {
		return nil, fmt.Errorf("%q is not a pattern", pattern)
	}
	base, rest := doublestar.SplitPattern(filepath.ToSlash(pattern))
	p, rel, err := f.find(base)
	if err != nil {
		return nil, err
	}
	var names []string
	err = doublestar.GlobWalk(p.fsys, path.Join(rel, rest), func(name string, _ fs.DirEntry) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if rel != "." {
			name = strings.TrimPrefix(strings.TrimPrefix(name, rel), "/")
		}
		names = append(names, path.Join(base, name))
		return nil
	}, doublestar.WithNoFollow())
	slices.Sort(names)
	return names, escaped(pattern, err)
}

// Target is a place below the directory that scripts may write to.
type Target struct {
	root *os.Root
	rel  string
}

// Create returns the place that name stands for. Nothing is made yet.
func (f *Files) Create(name string) (Target, error) {
	root, err := f.output()
	if err != nil {
		return Target{}, err
	}
	if filepath.IsAbs(name) {
		if name, err = filepath.Rel(root.Name(), name); err != nil {
			return Target{}, err
		}
	}
	if name == "" || !filepath.IsLocal(name) {
		return Target{}, &Failure{Msg: fmt.Sprintf("%q is outside the output directory %s", name, f.outDir)}
	}
	return Target{root, filepath.Clean(name)}, nil
}

// output opens the directory that scripts may write to, making it.
func (f *Files) output() (*os.Root, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.out != nil {
		return f.out, nil
	}
	if f.outDir == "" {
		return nil, &Failure{Msg: "the workflow may not write to the host", Hint: "--out DIR gives it a directory to write to"}
	}
	dir, err := filepath.Abs(f.outDir)
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err == nil {
		f.out, err = os.OpenRoot(dir)
	}
	return f.out, err
}

// Write writes a file of at most [MaxDownload] bytes, making its parents, see
// [place.File].
func (t Target) Write(data io.Reader, mode fs.FileMode) error {
	if err := t.root.MkdirAll(filepath.Dir(t.rel), 0o777); err != nil {
		return err
	}
	return place.File(t.root, t.rel, data, mode, MaxDownload)
}

// WriteGolden writes a file of the workflow's directory.
func (f *Files) WriteGolden(name string, data []byte) error {
	p, rel, err := f.find(name)
	if err != nil {
		return err
	}
	if p.root == nil {
		return fmt.Errorf("%q: an embedded file system cannot be written", name)
	}
	return escaped(name, Target{p.root, filepath.FromSlash(rel)}.Write(bytes.NewReader(data), 0o666))
}
