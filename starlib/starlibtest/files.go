package starlibtest

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/capybara-hq/capyrun/provider"
)

// op runs an operation on the files under the sandbox's lock.
func (s *Sandbox) op(ctx context.Context, op, name string, fn func(files fstest.MapFS) error) error {
	if err := s.enter(ctx, op); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := fn(s.files); err != nil {
		return &provider.Error{Op: op + " " + name, Sandbox: s.spec.Name, Err: err}
	}
	return nil
}

// key returns the name of a path in the map of files.
func key(name string) (string, error) {
	clean, err := provider.CleanPath("path", name)
	if clean == "/" {
		return ".", err
	}
	return strings.TrimPrefix(clean, "/"), err
}

func writeKey(name string, strictly bool) (string, error) {
	clean, err := provider.CleanWritePath("path", name, strictly)
	return strings.TrimPrefix(clean, "/"), err
}

func (s *Sandbox) makeDir(name string) {
	for dir := name; dir != "."; dir = path.Dir(dir) {
		if s.files[dir] == nil {
			s.files[dir] = &fstest.MapFile{Mode: fs.ModeDir | 0o755, ModTime: time.Now()}
		}
	}
}

// ReadFile implements [provider.FileSystem].
func (s *Sandbox) ReadFile(ctx context.Context, name string, opts provider.ReadOptions) (*provider.FileData, error) {
	out := &provider.FileData{}
	err := s.op(ctx, "read", name, func(files fstest.MapFS) error {
		if err := opts.Validate(); err != nil {
			return err
		}
		k, err := key(name)
		if err != nil {
			return err
		}
		info, err := fs.Stat(files, k)
		if err != nil {
			return fs.ErrNotExist
		}
		if info.IsDir() {
			return provider.ErrIsDirectory
		}
		data, err := fs.ReadFile(files, k)
		out.Size = int64(len(data))
		data = data[min(opts.Offset, out.Size):]
		limit := opts.Max
		if limit == 0 {
			limit = provider.DefaultMaxRead
		}
		if int64(len(data)) > limit {
			data, out.Truncated = data[:limit], true
		}
		out.Data = bytes.Clone(data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// OpenFile implements [provider.FileSystem].
func (s *Sandbox) OpenFile(ctx context.Context, name string, opts provider.ReadOptions) (io.ReadCloser, error) {
	if opts.Max == 0 {
		opts.Max = 1 << 62
	}
	file, err := s.ReadFile(ctx, name, opts)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(bytes.NewReader(file.Data)), nil
}

// WriteFile implements [provider.FileSystem].
func (s *Sandbox) WriteFile(ctx context.Context, name string, data io.Reader, opts provider.WriteOptions) error {
	content, err := io.ReadAll(data)
	if err != nil {
		return &provider.Error{Op: "write " + name, Sandbox: s.spec.Name, Err: err}
	}
	return s.op(ctx, "write", name, func(files fstest.MapFS) error {
		if err := opts.Validate(); err != nil {
			return err
		}
		k, err := writeKey(name, true)
		if err != nil {
			return err
		}
		mode := opts.Mode
		if old := files[k]; old != nil {
			if old.Mode.IsDir() {
				return provider.ErrIsDirectory
			}
			if mode == 0 {
				mode = old.Mode
			}
			if opts.Append {
				content = append(bytes.Clone(old.Data), content...)
			}
		}
		if mode == 0 {
			mode = 0o644
		}
		s.makeDir(path.Dir(k))
		files[k] = &fstest.MapFile{Data: content, Mode: mode, ModTime: time.Now()}
		return nil
	})
}

func fileInfo(name string, info fs.FileInfo) provider.FileInfo {
	kind := provider.KindOther
	switch {
	case info.IsDir():
		kind = provider.KindDirectory
	case info.Mode().IsRegular():
		kind = provider.KindFile
	case info.Mode()&fs.ModeSymlink != 0:
		kind = provider.KindSymlink
	}
	return provider.FileInfo{Path: name, Kind: kind, Size: info.Size(), Mode: info.Mode().Perm(), ModTime: info.ModTime()}
}

// Stat implements [provider.FileSystem].
func (s *Sandbox) Stat(ctx context.Context, name string) (*provider.FileInfo, error) {
	var out provider.FileInfo
	err := s.op(ctx, "stat", name, func(files fstest.MapFS) error {
		k, err := key(name)
		if err != nil {
			return err
		}
		info, err := fs.Stat(files, k)
		if err != nil {
			return fs.ErrNotExist
		}
		out = fileInfo("/"+strings.TrimPrefix(k, "."), info)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// ReadDir implements [provider.FileSystem].
func (s *Sandbox) ReadDir(ctx context.Context, name string, recursive bool) ([]provider.FileInfo, error) {
	var out []provider.FileInfo
	err := s.op(ctx, "list", name, func(files fstest.MapFS) error {
		dir, err := key(name)
		if err != nil {
			return err
		}
		if info, err := fs.Stat(files, dir); err != nil {
			return fs.ErrNotExist
		} else if !info.IsDir() {
			return provider.ErrNotDirectory
		}
		return fs.WalkDir(files, dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || p == dir {
				return err
			}
			info, err := d.Info()
			if err != nil {
				return err
			}
			out = append(out, fileInfo(strings.TrimPrefix(strings.TrimPrefix(p, dir), "/"), info))
			if d.IsDir() && !recursive {
				return fs.SkipDir
			}
			return nil
		})
	})
	return out, err
}

// Glob implements [provider.FileSystem].
func (s *Sandbox) Glob(ctx context.Context, pattern string) ([]string, error) {
	var out []string
	err := s.op(ctx, "glob", pattern, func(files fstest.MapFS) error {
		k, err := key(pattern)
		if err != nil {
			return err
		}
		names, err := doublestar.Glob(files, k)
		for _, name := range names {
			name = "/" + name
			if !path.IsAbs(pattern) {
				name = strings.TrimPrefix(name, provider.Workspace+"/")
			}
			out = append(out, name)
		}
		slices.Sort(out)
		return err
	})
	return out, err
}

// Mkdir implements [provider.FileSystem].
func (s *Sandbox) Mkdir(ctx context.Context, name string) error {
	return s.op(ctx, "mkdir", name, func(files fstest.MapFS) error {
		k, err := writeKey(name, false)
		if err != nil {
			return err
		}
		if old := files[k]; old != nil && !old.Mode.IsDir() {
			return fs.ErrExist
		}
		s.makeDir(k)
		return nil
	})
}

// Remove implements [provider.FileSystem].
func (s *Sandbox) Remove(ctx context.Context, name string) error {
	return s.op(ctx, "remove", name, func(files fstest.MapFS) error {
		k, err := writeKey(name, true)
		if err != nil {
			return err
		}
		if files[k] == nil {
			return fs.ErrNotExist
		}
		for p := range files {
			if p == k || strings.HasPrefix(p, k+"/") {
				delete(files, p)
			}
		}
		return nil
	})
}

// Rename implements [provider.FileSystem].
func (s *Sandbox) Rename(ctx context.Context, from, to string) error {
	return s.op(ctx, "rename", from, func(files fstest.MapFS) error {
		old, err := writeKey(from, true)
		if err != nil {
			return err
		}
		k, err := writeKey(to, true)
		if err != nil {
			return err
		}
		if files[old] == nil {
			return fs.ErrNotExist
		}
		s.makeDir(path.Dir(k))
		moved := fstest.MapFS{}
		for p, file := range files {
			if rest, ok := strings.CutPrefix(p, old); ok && (rest == "" || rest[0] == '/') {
				moved[k+rest] = file
				delete(files, p)
			}
		}
		for p, file := range moved {
			files[p] = file
		}
		return nil
	})
}

// Upload implements [provider.FileSystem]. Links are left out.
func (s *Sandbox) Upload(ctx context.Context, name string, r io.Reader) error {
	if err := s.Mkdir(ctx, name); err != nil {
		return err
	}
	tr := tar.NewReader(r)
	for {
		hdr, err := tr.Next()
		if errors.Is(err, io.EOF) {
			_, err := io.Copy(io.Discard, r) // the padding
			return err
		}
		if err != nil {
			return &provider.Error{Op: "upload " + name, Sandbox: s.spec.Name, Err: err}
		}
		target := path.Join(name, hdr.Name)
		switch hdr.Typeflag {
		case tar.TypeDir:
			err = s.Mkdir(ctx, target)
		case tar.TypeReg:
			err = s.WriteFile(ctx, target, tr, provider.WriteOptions{Mode: hdr.FileInfo().Mode().Perm()})
		}
		if err != nil {
			return err
		}
	}
}

// Download implements [provider.FileSystem].
func (s *Sandbox) Download(ctx context.Context, name string, w io.Writer) error {
	snapshot := fstest.MapFS{}
	err := s.op(ctx, "download", name, func(files fstest.MapFS) error {
		k, err := key(name)
		if err != nil {
			return err
		}
		info, err := fs.Stat(files, k)
		if err != nil {
			return fs.ErrNotExist
		}
		if !info.IsDir() {
			snapshot[path.Base(k)] = files[k]
			return nil
		}
		for p, file := range files {
			if rest, ok := strings.CutPrefix(p, k+"/"); ok {
				snapshot[rest] = file
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	return errors.Join(tw.AddFS(snapshot), tw.Close())
}
