package starlib_test

import (
	"context"
	"io"
	"os"
	"testing"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib"
)

// hostile is a provider whose sandboxes hold files that are not what they should
// be.
type hostile struct {
	provider.Provider
	reading chan struct{} // gets a value once "endless" is read
}

func (p hostile) Create(ctx context.Context, spec provider.Spec) (provider.Sandbox, error) {
	sb, err := p.Provider.Create(ctx, spec)
	return hostileSandbox{sb, p}, err
}

type hostileSandbox struct {
	provider.Sandbox
	provider hostile
}

func (s hostileSandbox) Stat(ctx context.Context, name string) (*provider.FileInfo, error) {
	switch name {
	case "device":
		return &provider.FileInfo{Path: name, Kind: provider.KindOther}, nil
	case "huge":
		return &provider.FileInfo{Path: name, Kind: provider.KindFile, Size: 1 << 50}, nil
	case "endless":
		return &provider.FileInfo{Path: name, Kind: provider.KindFile}, nil
	}
	return s.Sandbox.Stat(ctx, name)
}

func (s hostileSandbox) OpenFile(ctx context.Context, name string, opts provider.ReadOptions) (io.ReadCloser, error) {
	if name != "endless" {
		panic(name + " must not be opened")
	}
	return io.NopCloser(&zeros{ctx, s.provider.reading}), nil
}

// zeros yields bytes until its context ends.
type zeros struct {
	ctx     context.Context
	reading chan struct{}
}

func (z *zeros) Read(p []byte) (int, error) {
	select {
	case z.reading <- struct{}{}:
		return len(p), nil
	case <-z.ctx.Done():
		return 0, context.Cause(z.ctx)
	}
}

func TestDownloadFromAHostileSandbox(t *testing.T) {
	out := t.TempDir()
	p := hostile{starlibtestNew(t), make(chan struct{})}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-p.reading
		<-p.reading // the first part was written
		cancel()
	}()
	_, err := starlib.New(p, starlib.Options{Out: out}).RunSource(ctx, "main.star", []byte(`
sb = sandbox.create()
assert.fails(lambda: sb.download("device"), "device is neither a regular file nor a directory")
assert.fails(lambda: sb.download("huge"), "huge has 1125899906842624 bytes, more than the 8589934592")
sb.download("endless")
`), nil)
	wantKind(t, err, starlib.KindCanceled)
	if entries, err := os.ReadDir(out); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}
