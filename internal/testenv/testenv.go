// Package testenv gives tests what they need from the machine: a real engine,
// images on it, and the static capyrun binary that is also the agent.
//
// A test that asks for an engine is skipped where none answers, and fails
// there when REQUIRE_DOCKER is set, so that a machine that should have one
// cannot pass without it.
package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// Images that tests use. [Image] gets each of them.
const (
	// Busybox has static busybox with its applets and nothing else: no bash, no
	// procps, no /etc/passwd. It proves that any image works.
	Busybox = "capyrun-test-busybox:latest"
	// Debian is the default image.
	Debian = "debian:bookworm-slim"
	// Build has gcc, make and python3.
	Build = "capyrun-build:bookworm"
)

// Root is the directory of the repository.
var Root = sync.OnceValue(func() string {
	_, file, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(file) {
		panic("testenv: built with -trimpath, so the repository cannot be found")
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
})

// Binary returns the path of a static capyrun of the present sources. It is
// built at most once in a process, and only where the sources have changed.
// Test binaries cannot take its place inside a sandbox: with -race they are
// dynamic, and an image need not have a loader.
func Binary(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(Root(), "build", "test", "capyrun")
	unlock, err := lock(path + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	// Without the state of the work tree in it, the binary, and so the agent's
	// volume on the engine, changes only with the code.
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, "./cmd/capyrun")
	cmd.Dir = Root()
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build capyrun: %w\n%s", err, out)
	}
	return path, nil
})

// lock takes a lock that other test processes respect.
func lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

var (
	imagesMu sync.Mutex
	images   = map[string]error{}
)

// Image makes sure that the engine has an image, one of this package's
// constants, and returns its name. A missing one is made by scripts/image.sh.
func Image(t testing.TB, name string) string {
	t.Helper()
	Engine(t)
	imagesMu.Lock()
	defer imagesMu.Unlock()
	err, done := images[name]
	if !done {
		err = image(name)
		images[name] = err
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func image(name string) error {
	if err := Get("/images/"+name+"/json", nil); err == nil {
		return nil
	}
	cmd := exec.Command(filepath.Join(Root(), "scripts", "image.sh"), name)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make image %s: %w\n%s", name, err, out)
	}
	return nil
}
