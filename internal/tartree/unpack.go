package tartree

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"time"
)

// Unpack writes the entries of the tar stream r into the directory dir, which
// must exist. Existing files and links are replaced, directories are kept. An
// entry that would leave dir fails with an [*EntryError]: an absolute name, "..",
// a way through a symbolic link, or a link whose target is outside. So do
// devices, FIFOs and what is beyond the limits. Permission bits and times are
// restored, setuid, setgid and sticky bits and owners are not.
//
// A stream that ends without its end mark is [io.ErrUnexpectedEOF].
//
// After a failure what was unpacked until then is left in place.
func Unpack(ctx context.Context, r io.Reader, dir string, limits Limits) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	return UnpackRoot(ctx, r, root, limits)
}

// UnpackRoot is [Unpack] into an open directory.
func UnpackRoot(ctx context.Context, r io.Reader, root *os.Root, limits Limits) error {
	if limits.Bytes == 0 {
		limits.Bytes = DefaultBytes
	}
	if limits.Entries == 0 {
		limits.Entries = DefaultEntries
	}
	u := &unpacker{ctx: ctx, root: root, limits: limits, buf: make([]byte, 64<<10)}
	counted := &counter{r: r}
	tr := tar.NewReader(counted)
	for {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		before := counted.n
		h, err := tr.Next()
		if err == io.EOF {
			// Package tar takes the end of the input for the end of the stream, but
			// a stream without its end mark has been cut.
			if counted.n-before < blockSize {
				return io.ErrUnexpectedEOF
			}
			break
		}
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		if err := u.entry(h, tr); err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return &EntryError{Name: h.Name, Err: bare(err)}
		}
	}
	if err := u.finishDirs(); err != nil {
		return err
	}
	return discardPadding(r)
}

// discardPadding reads the zero blocks that some programs write after the end,
// so that the stream's writer can finish. Anything else would be lost data.
func discardPadding(r io.Reader) error {
	const most = 1 << 20
	b, err := io.ReadAll(io.LimitReader(r, most))
	if err != nil {
		return err
	}
	if len(bytes.Trim(b, "\x00")) > 0 || len(b) == most {
		return errors.New("data after the end of the tar stream")
	}
	return nil
}

type unpacker struct {
	ctx    context.Context
	root   *os.Root
	limits Limits
	buf    []byte
	// way is the directory that the last entry was in. Entries come in the
	// order of a walk, so the next one's way has most of it in common.
	way string
	// dirs get their mode and time at the end: a directory without write
	// permission could not be filled, and filling it changes its time.
	dirs []dirEntry
}

type dirEntry struct {
	name string
	mode fs.FileMode
	time time.Time
}

func (u *unpacker) entry(h *tar.Header, r io.Reader) error {
	if u.limits.Entries--; u.limits.Entries < 0 {
		return refused("too many entries")
	}
	name, err := entryName(h.Name)
	if err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode) & fs.ModePerm
	if u.limits.Readable {
		if mode |= 0o444; h.Typeflag == tar.TypeDir {
			mode |= 0o111
		}
	}
	switch h.Typeflag {
	case tar.TypeXGlobalHeader:
		return nil // a comment, such as git archive's
	case tar.TypeDir:
		if name != "." {
			if err := u.mkdirAll(name); err != nil {
				return err
			}
		}
		u.dirs = append(u.dirs, dirEntry{name, mode, h.ModTime})
		return nil
	}
	if name == "." {
		return refused("it would replace the directory itself")
	}
	if err := u.mkdirAll(path.Dir(name)); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return u.file(h, name, mode, r)
	case tar.TypeSymlink:
		return u.symlink(h, name)
	case tar.TypeLink:
		return u.link(h, name)
	}
	return refused("neither a file, a directory nor a link (type %q)", h.Typeflag)
}

// entryName returns the name in the form of io/fs.
func entryName(name string) (string, error) {
	switch {
	case name == "":
		return "", refused("an empty name")
	case strings.IndexByte(name, 0) >= 0:
		return "", refused("NUL in the name")
	case len(name) > 4096:
		return "", refused("a name of more than 4096 bytes")
	case strings.HasPrefix(name, "/"):
		return "", refused("an absolute name")
	}
	for elem := range strings.SplitSeq(name, "/") {
		if elem == ".." {
			return "", refused(`".." in the name`)
		}
		if len(elem) > 255 {
			return "", refused("an element of the name has more than 255 bytes")
		}
	}
	name = path.Clean(name)
	// The kernel walks all of a path for each call, and so does [os.Root].
	if strings.Count(name, "/") >= maxDepth {
		return "", refused("a name of more than %d elements", maxDepth)
	}
	return name, nil
}

const maxDepth = 255

// walk calls visit for each element of name below the directory from, which is
// "" or leads to name, with the open directory that the element is in. Opening
// each directory from the last one keeps the work linear in the depth.
func (u *unpacker) walk(from, name string, visit func(parent *os.Root, elem, prefix string) error) error {
	parent := u.root
	enter := func(dir string) error {
		next, err := parent.OpenRoot(dir)
		if err != nil {
			return err
		}
		if parent != u.root {
			parent.Close()
		}
		parent = next
		return nil
	}
	defer func() {
		if parent != u.root {
			parent.Close()
		}
	}()
	start := 0
	if from != "" {
		if err := enter(from); err != nil {
			return err
		}
		start = len(from) + 1
	}
	for {
		elem, _, more := strings.Cut(name[start:], "/")
		end := start + len(elem)
		if err := visit(parent, elem, name[:end]); err != nil || !more {
			return err
		}
		if err := enter(elem); err != nil {
			return err
		}
		start = end + 1
	}
}

// common returns the longest path that leads to both a and b, or "".
func common(a, b string) string {
	end := 0
	for i := 0; i <= len(a) && i <= len(b); i++ {
		aEnds, bEnds := i == len(a) || a[i] == '/', i == len(b) || b[i] == '/'
		if aEnds && bEnds {
			end = i
		}
		if i == len(a) || i == len(b) || a[i] != b[i] {
			break
		}
	}
	return a[:end]
}

// mkdirAll makes a directory and its parents. Nothing on the way may be a
// link, also where it would stay inside: what a stream writes through a link is
// a trick.
func (u *unpacker) mkdirAll(name string) error {
	if name == "." {
		return nil
	}
	from := common(u.way, name)
	if from == name {
		return nil
	}
	err := u.walk(from, name, func(parent *os.Root, elem, prefix string) error {
		fi, err := parent.Lstat(elem)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err := parent.Mkdir(elem, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			if u.limits.Readable {
				return parent.Chmod(elem, 0o755)
			}
			return nil
		case err != nil:
			return err
		case fi.Mode()&fs.ModeSymlink != 0:
			return refused("%q on its way is a symbolic link", prefix)
		case !fi.IsDir():
			return refused("%q on its way is no directory", prefix)
		}
		return nil
	})
	if err == nil {
		u.way = name
	}
	return err
}

// replace removes what has the name, unless it is a directory.
func (u *unpacker) replace(name string) error {
	fi, err := u.root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.IsDir() {
		return refused("it would replace a directory")
	}
	if common(u.way, name) == name {
		u.way = "" // somebody else has replaced a directory on it
	}
	return u.root.Remove(name)
}

func (u *unpacker) file(h *tar.Header, name string, mode fs.FileMode, r io.Reader) error {
	if h.Size > u.limits.Bytes {
		return refused("the files are too large together")
	}
	u.limits.Bytes -= h.Size
	if err := u.replace(name); err != nil {
		return err
	}
	// O_EXCL: the file is new, so neither a link nor a device is written to.
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.CopyBuffer(writerOnly{f}, &contextReader{u.ctx, r}, u.buf); err != nil {
		return unexpected(err)
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return u.setTime(name, h.ModTime)
}

func (u *unpacker) setTime(name string, t time.Time) error {
	if t.IsZero() || t.Unix() == 0 {
		return nil
	}
	return u.root.Chtimes(name, t, t)
}

func (u *unpacker) symlink(h *tar.Header, name string) error {
	target := h.Linkname
	if target == "" || strings.IndexByte(target, 0) >= 0 || len(target) > 4096 {
		return refused("an invalid link target")
	}
	if !u.limits.AnyLink {
		if path.IsAbs(target) {
			return refused("the link's target %q is absolute", target)
		}
		if !staysInside(path.Dir(name), target) {
			return refused("the link's target %q leads outside, or may", target)
		}
	}
	if err := u.replace(name); err != nil {
		return err
	}
	return u.root.Symlink(target, name)
}

// staysInside reports whether target, seen from the directory dir, stays within
// the root wherever the names in it may lead. Leading ".." are exact, since no
// link was passed on the way to dir; one after a name is not, since the name may
// be a link to somewhere higher up.
func staysInside(dir, target string) bool {
	depth := 0
	if dir != "." {
		depth = strings.Count(dir, "/") + 1
	}
	named := false
	for elem := range strings.SplitSeq(target, "/") {
		switch elem {
		case "", ".":
		case "..":
			if depth--; depth < 0 || named {
				return false
			}
		default:
			named = true
		}
	}
	return true
}

func (u *unpacker) link(h *tar.Header, name string) error {
	old, err := entryName(h.Linkname)
	if err != nil {
		return refused("the link's target %q: %v", h.Linkname, err)
	}
	// The target must be a file that is not reached through links: a hard link
	// to a symbolic link is another symbolic link, seen from another place.
	err = u.walk("", old, func(parent *os.Root, elem, prefix string) error {
		fi, err := parent.Lstat(elem)
		if err != nil {
			return err
		}
		if prefix != old && !fi.IsDir() || prefix == old && !fi.Mode().IsRegular() {
			return refused("the link's target %q is no file", h.Linkname)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if old == name {
		return nil
	}
	if err := u.replace(name); err != nil {
		return err
	}
	return u.root.Link(old, name)
}

// finishDirs sets modes and times, deepest first. A directory that has been
// replaced since is left alone.
func (u *unpacker) finishDirs() error {
	for i := len(u.dirs) - 1; i >= 0; i-- {
		d := u.dirs[i]
		fi, err := u.root.Lstat(d.name)
		if err != nil || !fi.IsDir() {
			continue
		}
		if d.name == "." {
			continue // the caller's directory
		}
		err = u.root.Chmod(d.name, d.mode)
		if err == nil {
			err = u.setTime(d.name, d.time)
		}
		if err != nil {
			return &EntryError{Name: d.name, Err: bare(err)}
		}
	}
	return nil
}

const blockSize = 512

type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}

// writerOnly hides ReadFrom, which would not use the buffer.
type writerOnly struct{ io.Writer }

type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (r *contextReader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}
