package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	startime "go.starlark.net/lib/time"
	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// sb.write(path, data, mode, append) writes a string or bytes to a file, making
// its parents. mode are permission bits such as 0o755; append = True adds to the
// file. Relative paths are relative to /workspace; writes must stay in
// /workspace, /tmp or /skills.
func write(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var (
		path string
		data script.Data
		mode script.Count
		opts provider.WriteOptions
	)
	if err := script.Unpack(args, kwargs, "path", &path, "data", &data, "mode??", &mode, "append?", &opts.Append); err != nil {
		return nil, err
	}
	opts.Mode = fs.FileMode(mode)
	if mode > 0o777 {
		return nil, fmt.Errorf("mode: 0o%s: must be permission bits, 0o001 to 0o777", strconv.FormatInt(int64(mode), 8))
	}
	return starlark.None, s.span(t, event.KindFile, "write "+path, func(ctx context.Context) error {
		return s.sb.WriteFile(ctx, path, bytes.NewReader(data), opts)
	})
}

// sb.read(path, max_bytes, offset) returns a file as a string, from offset bytes
// on. Without max_bytes more than 16 MiB are an error; with it, at most that much
// is returned.
func read(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	data, err := readFile(t, s, args, kwargs)
	return starlark.String(data), err
}

// sb.read_bytes(path, max_bytes, offset) is sb.read that returns bytes.
func readBytes(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	data, err := readFile(t, s, args, kwargs)
	return starlark.Bytes(data), err
}

func readFile(t *script.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) ([]byte, error) {
	var path string
	var max script.Size
	var offset int64
	if err := script.Unpack(args, kwargs, "path", &path, "max_bytes??", &max, "offset??", &offset); err != nil {
		return nil, err
	}
	var file *provider.FileData
	err := s.span(t, event.KindFile, "read "+path, func(ctx context.Context) (err error) {
		file, err = s.sb.ReadFile(ctx, path, provider.ReadOptions{Max: int64(max), Offset: offset})
		return err
	})
	switch {
	case err != nil:
		return nil, err
	case file.Truncated && max == 0 && file.Size-offset <= provider.DefaultMaxRead:
		// A device, a pipe or a file of /proc: the size says nothing.
		return nil, fmt.Errorf("%s goes on after %d bytes; max_bytes says how much to read of it", path, provider.DefaultMaxRead)
	case file.Truncated && max == 0:
		return nil, fmt.Errorf("%s is %d bytes, more than the %d that are read without max_bytes", path, file.Size, provider.DefaultMaxRead)
	}
	return file.Data, nil
}

// sb.stat(path) describes a file, following links: .path, .kind ("file",
// "directory", "other"), .size, .mode, .mtime. It is None if there is none.
func stat(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	info, err := statPath(t, s, args, kwargs)
	if err != nil || info == nil {
		return starlark.None, err
	}
	return fileRecord(*info), nil
}

// sb.exists(path) says whether there is a file or directory of that name.
func exists(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	info, err := statPath(t, s, args, kwargs)
	return starlark.Bool(info != nil), err
}

// statPath returns nil for a file that does not exist.
func statPath(t *script.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (*provider.FileInfo, error) {
	var path string
	if err := script.Unpack(args, kwargs, "path", &path); err != nil {
		return nil, err
	}
	var info *provider.FileInfo
	err := s.span(t, event.KindFile, "stat "+path, func(ctx context.Context) (err error) {
		info, err = s.sb.Stat(ctx, path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, provider.ErrNotDirectory) {
			info, err = nil, nil
		}
		return err
	})
	return info, err
}

func fileRecord(info provider.FileInfo) *script.Record {
	return script.NewRecord("file", starlark.StringDict{
		"path":   starlark.String(info.Path),
		"kind":   starlark.String(info.Kind),
		"size":   starlark.MakeInt64(info.Size),
		"mode":   starlark.MakeInt(int(info.Mode.Perm())),
		"mtime":  startime.Time(info.ModTime),
		"target": starlark.String(info.Target),
	}, func() string {
		return fmt.Sprintf("<%s %s, %d bytes>", info.Kind, info.Path, info.Size)
	})
}

// sb.ls(path, recursive) lists a directory, /workspace by default, by name, with
// the attributes of sb.stat and .target for symbolic links. Paths are relative
// to the directory.
func ls(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	path, recursive := provider.Workspace, false
	if err := script.Unpack(args, kwargs, "path??", &path, "recursive?", &recursive); err != nil {
		return nil, err
	}
	var infos []provider.FileInfo
	err := s.span(t, event.KindFile, "list "+path, func(ctx context.Context) (err error) {
		infos, err = s.sb.ReadDir(ctx, path, recursive)
		return err
	})
	out := make([]starlark.Value, len(infos))
	for i, info := range infos {
		out[i] = fileRecord(info)
	}
	return starlark.NewList(out), err
}

// sb.glob(pattern) returns the paths that match, sorted: *, ? and [...] within a
// path element, ** for any number of directories.
func glob(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var pattern string
	if err := script.Unpack(args, kwargs, "pattern", &pattern); err != nil {
		return nil, err
	}
	var paths []string
	err := s.span(t, event.KindFile, "glob "+pattern, func(ctx context.Context) (err error) {
		paths, err = s.sb.Glob(ctx, pattern)
		return err
	})
	if err != nil {
		return nil, err
	}
	return script.FromGo(paths)
}

// sb.mkdir(path) makes a directory and its parents; one that exists is fine.
func mkdir(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var path string
	if err := script.Unpack(args, kwargs, "path", &path); err != nil {
		return nil, err
	}
	return starlark.None, s.span(t, event.KindFile, "mkdir "+path, func(ctx context.Context) error { return s.sb.Mkdir(ctx, path) })
}

// sb.remove(path, missing_ok) removes a file or a whole directory. One that does
// not exist fails with kind "not found", unless missing_ok = True.
func removeFile(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var path string
	var missingOK bool
	if err := script.Unpack(args, kwargs, "path", &path, "missing_ok?", &missingOK); err != nil {
		return nil, err
	}
	return starlark.None, s.span(t, event.KindFile, "remove "+path, func(ctx context.Context) error {
		err := s.sb.Remove(ctx, path)
		if missingOK && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// sb.rename(old, new) moves a file or directory, replacing a file of that name.
func rename(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var from, to string
	if err := script.Unpack(args, kwargs, "old", &from, "new", &to); err != nil {
		return nil, err
	}
	return starlark.None, s.span(t, event.KindFile, "rename "+from+" to "+to, func(ctx context.Context) error { return s.sb.Rename(ctx, from, to) })
}
