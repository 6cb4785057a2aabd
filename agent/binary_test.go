package agent

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestFindBinary(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
		return file
	}
	source := write("main.go", "package main\nfunc main() {}\n")
	build := func(goarch string) string {
		t.Helper()
		out := filepath.Join(dir, "bin-"+goarch)
		cmd := exec.Command("go", "build", "-o", out, source)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+goarch)
		if b, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, b)
		}
		return out
	}
	amd64, arm64 := build("amd64"), build("arm64")
	script := write("script", "#!/bin/sh\n")

	for _, tt := range []struct{ configured, goos, goarch, want string }{
		{amd64, "linux", "amd64", ""},
		{arm64, "linux", "arm64", ""},
		{amd64, "linux", "arm64", "the engine runs arm64"},
		{script, "linux", "amd64", "not an ELF program"},
		{dir, "linux", "amd64", "not a regular file"},
		{filepath.Join(dir, "none"), "linux", "amd64", "no such file"},
		{amd64, "windows", "amd64", "runs on linux"},
		{amd64, "linux", "vax", "unknown machine"},
	} {
		got, err := FindBinary(tt.configured, tt.goos, tt.goarch)
		if tt.want == "" && (err != nil || got != tt.configured) || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
	if loader, err := FindBinary("/bin/sh", "linux", runtime.GOARCH); err == nil || !strings.Contains(err.Error(), "dynamically linked") {
		t.Errorf("a dynamic program: %q, %v", loader, err)
	}

	// This test's own binary, since its TestMain calls Main; then PATH.
	called := mainCalled.Swap(false)
	defer mainCalled.Store(called)
	t.Setenv("PATH", dir)
	_, err := FindBinary("", "linux", "amd64")
	if err == nil {
		t.Fatal("found one where there is none")
	}
	for _, way := range []string{"docker.Config.AgentBinary", "agent.Main()", "capyrun on PATH"} {
		if !strings.Contains(err.Error(), way) {
			t.Errorf("the error does not name %q: %v", way, err)
		}
	}
	if err := os.Rename(amd64, filepath.Join(dir, "capyrun")); err != nil {
		t.Fatal(err)
	}
	if got, err := FindBinary("", "linux", "amd64"); err != nil || got != filepath.Join(dir, "capyrun") {
		t.Errorf("on PATH: %q, %v", got, err)
	}
	mainCalled.Store(true)
	if _, err := FindBinary("", "linux", "arm64"); err == nil || !strings.Contains(err.Error(), "this program cannot be it") || !strings.Contains(err.Error(), "capyrun cannot be it") {
		t.Errorf("for another machine: %v", err)
	}
}
