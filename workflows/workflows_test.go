// Package workflows holds example workflows; its test runs each of them.
package workflows

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/capybara-hq/capyrun/internal/testenv"
)

// examples says what is known of each workflow beforehand.
var examples = map[string][]struct {
	args   []string
	images []string
	code   int
	stdout string // must be contained
	stderr string
}{
	"hello.star": {
		{images: []string{testenv.Debian}, stdout: `"greeting": "hello world, from uid 1000 in /workspace"`, stderr: "greeted in debian:bookworm-slim"},
		{args: []string{"-p", "name=capy", "-p", "image=" + testenv.Busybox}, images: []string{testenv.Busybox}, stdout: "hello capy"},
	},
	"build_and_test.star": {
		{images: []string{testenv.Build}, stdout: `"test_large"`},
	},
	"matrix.star": {
		{images: []string{testenv.Debian}, stdout: `"locale": "C.UTF-8"`},
	},
	"server_and_client.star": {
		{images: []string{testenv.Build}, stdout: `"page": "<h1>It works</h1>"`},
	},
	"cleanup.star": {
		{images: []string{testenv.Debian}, stdout: "done\n", stderr: "released /tmp/second.lock, held by job 7\nreleased /tmp/first.lock, held by job 7\nthe sandbox is still there"},
		{args: []string{"-p", "fail=true"}, images: []string{testenv.Debian}, code: 1, stderr: "released /tmp/second.lock, held by job 7\nreleased /tmp/first.lock, held by job 7\nthe sandbox is still there"},
	},
	"hostile.star": {
		{images: []string{testenv.Debian}, stdout: `"memory eater: killed at 64 MiB"`},
	},
}

func TestWorkflows(t *testing.T) {
	files, err := filepath.Glob("*.star")
	if err != nil || len(files) != len(examples) {
		t.Fatalf("%d workflows here, %d with an example (%v)", len(files), len(examples), err)
	}
	for _, file := range files {
		for _, ex := range examples[file] {
			t.Run(strings.Join(append([]string{file}, ex.args...), " "), func(t *testing.T) {
				t.Parallel()
				testenv.Engine(t)
				for _, image := range ex.images {
					testenv.Image(t, image)
				}
				label := "w" + strings.ToLower(rand.Text())
				ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, testenv.Binary(t), append([]string{"run", "--progress", "none", file}, ex.args...)...)
				cmd.Env = append(os.Environ(), "CAPYRUN_LABELS=capyrun.test="+label)
				cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
				cmd.WaitDelay = time.Minute
				var stdout, stderr bytes.Buffer
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				err := cmd.Run()
				var exit *exec.ExitError
				if err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				if code := cmd.ProcessState.ExitCode(); code != ex.code {
					t.Errorf("exit code %d, want %d", code, ex.code)
				}
				if !strings.Contains(stdout.String(), ex.stdout) {
					t.Errorf("stdout lacks %q", ex.stdout)
				}
				if !strings.Contains(stderr.String(), ex.stderr) {
					t.Errorf("stderr lacks %q", ex.stderr)
				}
				if left := testenv.Resources(t, "capyrun.test", label); len(left) > 0 {
					t.Errorf("left on the engine: %v", left)
				}
				if t.Failed() {
					t.Logf("stdout:\n%s\nstderr:\n%s", &stdout, &stderr)
				}
			})
		}
	}
}
