package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/internal/tartree"
	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/script"
)

// sb.upload(host_path, path) copies a file or directory of the host into the
// sandbox, to path; /workspace by default for a directory, the file's name for a
// file. The host's file must lie in the workflow's directory or one that
// --allow-read names.
func upload(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var from, to string
	if err := script.Unpack(args, kwargs, "host_path", &from, "path??", &to); err != nil {
		return nil, err
	}
	src, mode, err := t.Files.Open(from)
	if err != nil {
		return nil, err
	}
	return starlark.None, s.span(t, event.KindFile, "upload "+from, func(ctx context.Context) error {
		if src.File != nil {
			defer src.File.Close()
			return s.sb.WriteFile(ctx, orBase(to, from), src.File, provider.WriteOptions{Mode: mode})
		}
		if to == "" {
			to = provider.Workspace
		}
		return tartree.Pipe(
			func(w io.Writer) error { return src.Tar(ctx, w) },
			func(r io.Reader) error { return s.sb.Upload(ctx, to, r) },
		)
	})
}

// sb.download(path, host_path) copies a file or directory of the sandbox to the
// host, below the directory that --out names; by default under its own name. A
// file, or the files of a directory together, may have [script.MaxDownload]
// bytes. A file, or a directory that did not exist, appears once it is complete.
func download(t *script.Thread, _ *starlark.Thread, s *Sandbox, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var from, to string
	if err := script.Unpack(args, kwargs, "path", &from, "host_path??", &to); err != nil {
		return nil, err
	}
	dst, err := t.Files.Create(orBase(to, from))
	if err != nil {
		return nil, err
	}
	return starlark.None, s.span(t, event.KindFile, "download "+from, func(ctx context.Context) error {
		info, err := s.sb.Stat(ctx, from)
		if err != nil {
			return err
		}
		if info.Kind == provider.KindDirectory {
			return tartree.Pipe(
				func(w io.Writer) error { return s.sb.Download(ctx, from, w) },
				func(r io.Reader) error { return dst.Untar(ctx, r) },
			)
		}
		// A device may have no end. What Stat saw may be another file by now, so
		// that Write has a bound too.
		switch {
		case info.Kind != provider.KindFile:
			return fmt.Errorf("%s is neither a regular file nor a directory", from)
		case info.Size > script.MaxDownload:
			return fmt.Errorf("%s has %d bytes, more than the %d that a file of the host may have", from, info.Size, script.MaxDownload)
		}
		file, err := s.sb.OpenFile(ctx, from, provider.ReadOptions{})
		if err != nil {
			return err
		}
		if err := errors.Join(dst.Write(file, info.Mode), file.Close()); err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		return nil
	})
}

func orBase(name, other string) string {
	if name != "" {
		return name
	}
	return path.Base(other)
}
