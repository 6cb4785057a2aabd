package tartree

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"syscall"
)

// Pack writes the file or directory at path to w as a tar stream. The entries
// of a directory have names relative to it, and a single file is one entry of
// its base name. Symbolic links are kept, but path itself is followed.
// Permission bits and modification times are kept, owners are not. Sockets,
// devices and FIFOs are left out, and so is what disappears meanwhile.
func Pack(ctx context.Context, w io.Writer, path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return err
	}
	p := &packer{ctx: ctx, tw: tar.NewWriter(w), buf: make([]byte, 64<<10)}
	switch {
	case fi.IsDir():
		err = p.dir(path)
	case fi.Mode().IsRegular():
		err = p.file(path, filepath.Base(path))
	default:
		return &fs.PathError{Op: "pack", Path: path, Err: errors.New("neither a file nor a directory")}
	}
	if err != nil {
		return err
	}
	return p.tw.Close()
}

type packer struct {
	ctx context.Context
	tw  *tar.Writer
	buf []byte
}

// dir packs what is below a directory. It keeps one path for each directory
// that is still to be read, not the whole tree.
func (p *packer) dir(root string) error {
	todo := []string{"."}
	for len(todo) > 0 {
		rel := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		d, err := os.Open(filepath.Join(root, rel))
		if err != nil {
			if rel != "." && errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return err
		}
		for {
			entries, err := d.ReadDir(256)
			for _, e := range entries {
				name := path.Join(filepath.ToSlash(rel), e.Name())
				isDir, err := p.entry(filepath.Join(root, rel, e.Name()), name)
				if err != nil {
					d.Close()
					return err
				}
				if isDir {
					todo = append(todo, filepath.FromSlash(name))
				}
			}
			if err == io.EOF {
				break
			}
			if err != nil {
				d.Close()
				return err
			}
		}
		d.Close()
	}
	return nil
}

// entry packs one entry of a directory and reports whether it is a directory
// itself.
func (p *packer) entry(file, name string) (isDir bool, err error) {
	if err := context.Cause(p.ctx); err != nil {
		return false, err
	}
	fi, err := os.Lstat(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	switch {
	case fi.Mode().IsRegular():
		err = p.file(file, name)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		return false, err
	case fi.IsDir():
		return true, p.tw.WriteHeader(header(fi, tar.TypeDir, name+"/"))
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(file)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EINVAL) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
		h := header(fi, tar.TypeSymlink, name)
		h.Linkname = filepath.ToSlash(target)
		return false, p.tw.WriteHeader(h)
	}
	return false, nil
}

func header(fi fs.FileInfo, typ byte, name string) *tar.Header {
	return &tar.Header{Typeflag: typ, Name: name, Mode: int64(fi.Mode().Perm()), ModTime: fi.ModTime(), Format: tar.FormatPAX}
}

// file packs a regular file. Its size is settled when it is opened: what is
// appended later is left out, and a file that shrinks is an error, since the
// stream has announced the size.
func (p *packer) file(file, name string) error {
	// O_NONBLOCK: by now the name may be that of a FIFO.
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if !fi.Mode().IsRegular() {
		return nil
	}
	h := header(fi, tar.TypeReg, name)
	h.Size = fi.Size()
	if err := p.tw.WriteHeader(h); err != nil {
		return err
	}
	left := h.Size
	for left > 0 {
		if err := context.Cause(p.ctx); err != nil {
			return err
		}
		n, err := f.Read(p.buf[:min(left, int64(len(p.buf)))])
		left -= int64(n)
		if _, err := p.tw.Write(p.buf[:n]); err != nil {
			return err
		}
		if err == io.EOF && left > 0 {
			return &fs.PathError{Op: "pack", Path: file, Err: fmt.Errorf("became shorter while it was read: %w", io.ErrUnexpectedEOF)}
		}
		if err != nil && err != io.EOF {
			return err
		}
	}
	return nil
}
