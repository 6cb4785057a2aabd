package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
)

// ReadFile implements [provider.FileSystem].
func (s *Session) ReadFile(ctx context.Context, path string, opts provider.ReadOptions) (*provider.FileData, error) {
	op := "read " + path
	if opts.Max == 0 {
		opts.Max = provider.DefaultMaxRead
	}
	req, err := readRequest(path, opts)
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	var data []byte
	resp, err := s.do(ctx, op, &s.main, req, func(o *operation, t wire.Type, n int) error {
		if t != wire.TypeData {
			return nil
		}
		if int64(len(data)+n) > opts.Max {
			return o.lost(fmt.Errorf("%w: more data than was asked for", wire.ErrGarbled))
		}
		data = slices.Grow(data, n)[:len(data)+n]
		if _, err := io.ReadFull(o.s.in, data[len(data)-n:]); err != nil {
			return o.lost(err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if data == nil {
		data = []byte{}
	}
	return &provider.FileData{Data: data, Truncated: resp.Truncated, Size: max(resp.Size, 0)}, nil
}

func readRequest(path string, opts provider.ReadOptions) (*request, error) {
	clean, err := provider.CleanPath("path", path)
	if err != nil {
		return nil, err
	}
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	return &request{Request: wire.Request{Op: wire.OpRead, Path: []byte(clean), Offset: opts.Offset, Max: opts.Max}}, nil
}

// OpenFile implements [provider.FileSystem]. Reading fails when ctx ends. Close
// may be called while another goroutine reads.
func (s *Session) OpenFile(ctx context.Context, path string, opts provider.ReadOptions) (io.ReadCloser, error) {
	op := "read " + path
	req, err := readRequest(path, opts)
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	o, err := s.begin(ctx, req)
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	f := &remoteFile{s: s, op: op, ctx: ctx, o: o, max: opts.Max}
	// The first frame says whether the file can be read at all.
	if err := f.next(); err != nil && err != io.EOF {
		return nil, err
	}
	return f, nil
}

// remoteFile is a file that is being read.
type remoteFile struct {
	s   *Session
	op  string
	ctx context.Context
	max int64

	mu   sync.Mutex // held while reading
	o    *operation
	got  int64
	left int   // of the present frame
	err  error // how it ended
}

// next reads up to the next data frame; io.EOF is the end of the file.
func (f *remoteFile) next() error {
	for f.err == nil {
		t, n, err := f.o.next()
		switch {
		case err != nil:
			f.finish(err, false)
		case t == wire.TypeFinal:
			f.final()
		case t == wire.TypeData:
			if f.got += int64(n); f.max > 0 && f.got > f.max {
				f.finish(f.o.lost(fmt.Errorf("%w: more data than was asked for", wire.ErrGarbled)), false)
				break
			}
			f.left = n
			return nil
		}
	}
	return f.err
}

func (f *remoteFile) final() {
	resp, err := f.o.final()
	if err != nil {
		f.finish(err, false)
		return
	}
	switch cause := context.Cause(f.o.ctx); {
	case resp.Error == nil:
		err = io.EOF
	case cause != nil:
		err = cause
	default:
		err = resp.Error.Decode()
	}
	f.finish(err, true)
}

func (f *remoteFile) finish(err error, clean bool) {
	f.o.end(clean)
	f.left = 0
	if err != io.EOF {
		err = f.s.fail(f.ctx, f.op, err)
	}
	f.err = err
}

func (f *remoteFile) Read(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.left == 0 {
		if err := f.next(); err != nil {
			return 0, err
		}
	}
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.o.s.in.Read(p[:min(len(p), f.left)])
	f.left -= n
	if err != nil {
		f.finish(f.o.lost(err), false)
		return n, f.err
	}
	return n, nil
}

// Close stops the reading and returns when it has stopped.
func (f *remoteFile) Close() error {
	f.o.cancel(fs.ErrClosed)
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.err == nil {
		f.next() // what is on its way is dropped
	}
	if f.err == io.EOF {
		f.err = f.s.fail(f.ctx, f.op, fs.ErrClosed)
	}
	return nil
}

// WriteFile implements [provider.FileSystem].
func (s *Session) WriteFile(ctx context.Context, path string, data io.Reader, opts provider.WriteOptions) error {
	op := "write " + path
	if err := opts.Validate(); err != nil {
		return s.fail(ctx, op, err)
	}
	clean, err := provider.CleanWritePath("path", path, true)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	_, err = s.do(ctx, op, s.linkFor(clean), &request{
		Request: wire.Request{Op: wire.OpWrite, Path: []byte(clean), Mode: uint32(opts.Mode), Append: opts.Append, Input: true},
		input:   data,
	}, nil)
	return err
}

// linkFor returns the connection to the server that may change a clean path.
func (s *Session) linkFor(clean string) *link {
	if provider.InSkills(clean) {
		return &s.skills
	}
	return &s.main
}

// Stat implements [provider.FileSystem].
func (s *Session) Stat(ctx context.Context, path string) (*provider.FileInfo, error) {
	op := "stat " + path
	clean, err := provider.CleanPath("path", path)
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	resp, err := s.do(ctx, op, &s.main, &request{Request: wire.Request{Op: wire.OpStat, Path: []byte(clean)}}, nil)
	if err != nil {
		return nil, err
	}
	if resp.File == nil {
		return nil, s.fail(ctx, op, errIncomplete)
	}
	info := resp.File.Info()
	info.Path = clean
	return &info, nil
}

// ReadDir implements [provider.FileSystem].
func (s *Session) ReadDir(ctx context.Context, path string, recursive bool) ([]provider.FileInfo, error) {
	op := "list " + path
	clean, err := provider.CleanPath("path", path)
	if err != nil {
		return nil, s.fail(ctx, op, err)
	}
	list := []provider.FileInfo{}
	_, err = s.do(ctx, op, &s.main, &request{Request: wire.Request{Op: wire.OpReadDir, Path: []byte(clean), Recursive: recursive}}, collect(func(f *wire.File) {
		list = append(list, f.Info())
	}))
	if err != nil {
		return nil, err
	}
	slices.SortFunc(list, func(a, b provider.FileInfo) int { return comparePaths(a.Path, b.Path) })
	return list, nil
}

// comparePaths orders paths by their elements, so that a directory comes
// before what is in it, and that before its neighbours.
func comparePaths(a, b string) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		switch {
		case x == y:
		case x == '/':
			return -1
		case y == '/':
			return 1
		default:
			return cmp.Compare(x, y)
		}
	}
	return cmp.Compare(len(a), len(b))
}

// Glob implements [provider.FileSystem]. The paths are absolute where the
// pattern is, else relative to /workspace.
func (s *Session) Glob(ctx context.Context, pattern string) ([]string, error) {
	op := "glob " + pattern
	if _, err := provider.CleanPath("pattern", pattern); err != nil {
		return nil, s.fail(ctx, op, err)
	}
	list := []string{}
	_, err := s.do(ctx, op, &s.main, &request{Request: wire.Request{Op: wire.OpGlob, Path: []byte(pattern)}}, collect(func(p *[]byte) {
		list = append(list, string(*p))
	}))
	if err != nil {
		return nil, err
	}
	slices.Sort(list)
	return list, nil
}

// change performs an operation that needs nothing but a path.
func (s *Session) change(ctx context.Context, op string, o wire.Op, path string, strictly bool) error {
	clean, err := provider.CleanWritePath("path", path, strictly)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	_, err = s.do(ctx, op, s.linkFor(clean), &request{Request: wire.Request{Op: o, Path: []byte(clean)}}, nil)
	return err
}

// Mkdir implements [provider.FileSystem].
func (s *Session) Mkdir(ctx context.Context, path string) error {
	return s.change(ctx, "make directory "+path, wire.OpMkdir, path, false)
}

// Remove implements [provider.FileSystem].
func (s *Session) Remove(ctx context.Context, path string) error {
	return s.change(ctx, "remove "+path, wire.OpRemove, path, true)
}

// Rename implements [provider.FileSystem].
func (s *Session) Rename(ctx context.Context, from, to string) error {
	op := "rename " + from + " to " + to
	cleanFrom, err := provider.CleanWritePath("from", from, true)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	cleanTo, err := provider.CleanWritePath("to", to, true)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	if provider.InSkills(cleanFrom) != provider.InSkills(cleanTo) {
		return s.fail(ctx, op, &provider.InvalidError{Field: "to", Value: to, Reason: "must be under /skills exactly where the source is: their owners differ"})
	}
	_, err = s.do(ctx, op, s.linkFor(cleanFrom), &request{Request: wire.Request{Op: wire.OpRename, Path: []byte(cleanFrom), To: []byte(cleanTo)}}, nil)
	return err
}

// Upload implements [provider.FileSystem].
func (s *Session) Upload(ctx context.Context, path string, tar io.Reader) error {
	op := "upload to " + path
	clean, err := provider.CleanWritePath("path", path, false)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	_, err = s.do(ctx, op, s.linkFor(clean), &request{
		Request: wire.Request{Op: wire.OpUpload, Path: []byte(clean), Input: true},
		input:   tar,
	}, nil)
	return err
}

// Download implements [provider.FileSystem].
func (s *Session) Download(ctx context.Context, path string, w io.Writer) error {
	op := "download " + path
	clean, err := provider.CleanPath("path", path)
	if err != nil {
		return s.fail(ctx, op, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	buf := make([]byte, wire.MaxData)
	var failed error
	_, err = s.do(ctx, op, &s.main, &request{Request: wire.Request{Op: wire.OpDownload, Path: []byte(clean)}}, func(o *operation, t wire.Type, n int) error {
		if t != wire.TypeData || failed != nil {
			return nil
		}
		if _, err := io.ReadFull(o.s.in, buf[:n]); err != nil {
			return o.lost(err)
		}
		o.busy.Store(true)
		defer o.busy.Store(false)
		if _, err := w.Write(buf[:n]); err != nil {
			failed = err
			cancel(err) // and drop what is on its way
		}
		return nil
	})
	if err == nil && failed != nil {
		err = s.fail(ctx, op, failed)
	}
	return err
}
