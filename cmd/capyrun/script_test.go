package main

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/capybara-hq/capyrun/internal/testenv"
)

// testLabel marks everything that a test's commands create, so that what they
// leave is found, whoever else uses the engine.
const testLabel = "capyrun.test"

// patience is how long a test waits for something that should come at once.
const patience = 60 * time.Second

// TestScripts runs testdata/*.txtar against the real binary. Beside the usual
// commands of testscript there are:
//
//	exits END PROGRAM ARG...        run a program, which must end with that code or signal
//	begin NAME PROGRAM ARG...       run it in the background, its output in NAME.stdout and NAME.stderr
//	appears FILE REGEXP             wait until the file's content matches
//	signal NAME SIGNAL              send a signal to a program in the background
//	ends NAME END                   wait for it
//	empty                           nothing that the script's commands created is left
//
// A script whose name begins with "engine" needs an engine. It gets the image
// capyrun-test-busybox as default, and $NAME as a name for a sandbox.
func TestScripts(t *testing.T) {
	bin := testenv.Binary(t)
	scripts, err := filepath.Glob(filepath.Join(testenv.Root(), "testdata", "*.txtar"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".txtar")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			needsEngine := strings.HasPrefix(name, "engine")
			if needsEngine {
				testenv.Image(t, testenv.Busybox)
			}
			label := "t" + strings.ToLower(rand.Text())
			if needsEngine {
				t.Cleanup(func() { empty(t, label) }) // the script itself runs after this function
			}
			testscript.Run(t, testscript.Params{
				Files:               []string{script},
				RequireExplicitExec: true,
				RequireUniqueNames:  true,
				Setup: func(env *testscript.Env) error {
					env.Values[programsKey{}] = programs{}
					env.Setenv("PATH", filepath.Dir(bin)+string(filepath.ListSeparator)+env.Getenv("PATH"))
					env.Setenv("NAME", "cap-"+label)
					env.Setenv("LABEL", label)
					env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, ".config"))
					env.Setenv("DOCKER_HOST", testenv.Endpoint())
					if needsEngine {
						env.Setenv("CAPYRUN_IMAGE", testenv.Busybox)
						env.Setenv("CAPYRUN_LABELS", testLabel+"="+label)
					}
					return nil
				},
				Cmds: map[string]func(*testscript.TestScript, bool, []string){
					"exits":   exits,
					"begin":   begin,
					"appears": appears,
					"signal":  sendSignal,
					"ends":    ends,
					"empty":   func(*testscript.TestScript, bool, []string) { empty(t, label) },
				},
			})
		})
	}
}

// empty waits until nothing with the label is left: another test's sweep may be
// removing it at this moment.
func empty(t *testing.T, label string) {
	var left []string
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if left = testenv.Resources(t, testLabel, label); len(left) == 0 {
			return
		}
	}
	for _, resource := range left {
		if name, ok := strings.CutPrefix(resource, "container "); ok {
			exec.Command(testenv.Binary(t), "rm", name).Run()
		}
	}
	t.Fatalf("left on the engine: %v", left)
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits END PROGRAM ARG...")
	}
	err := ts.Exec(args[1], args[2:]...)
	if got := endOf(ts, err); got != args[0] {
		ts.Fatalf("it ended with %s, want %s\nstdout:\n%s\nstderr:\n%s", got, args[0], ts.ReadFile("stdout"), ts.ReadFile("stderr"))
	}
}

// endOf is how a program ended: its exit code or the name of a signal.
func endOf(ts *testscript.TestScript, err error) string {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return "0"
	case errors.As(err, &exit):
		if status := exit.Sys().(syscall.WaitStatus); status.Signaled() {
			return unix.SignalName(status.Signal())
		}
		return strconv.Itoa(exit.ExitCode())
	}
	ts.Fatalf("%v", err)
	return ""
}

// programs are those that a script began, by name.
type programs map[string]*exec.Cmd

type programsKey struct{}

func begun(ts *testscript.TestScript, name string) *exec.Cmd {
	cmd := ts.Value(programsKey{}).(programs)[name]
	if cmd == nil {
		ts.Fatalf("no program %s was begun", name)
	}
	return cmd
}

func begin(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: begin NAME PROGRAM ARG...")
	}
	path := args[1]
	if !strings.Contains(path, "/") {
		for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
			if p := filepath.Join(dir, path); isFile(p) {
				path = p
				break
			}
		}
	}
	stdout, err := os.Create(ts.MkAbs(args[0] + ".stdout"))
	ts.Check(err)
	defer stdout.Close()
	stderr, err := os.Create(ts.MkAbs(args[0] + ".stderr"))
	ts.Check(err)
	defer stderr.Close()
	cmd := exec.Command(path, args[2:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = ts.MkAbs("."), stdout, stderr
	for _, name := range []string{"PATH", "HOME", "DOCKER_HOST", "XDG_CONFIG_HOME", "CAPYRUN_IMAGE", "CAPYRUN_LABELS"} {
		if value := ts.Getenv(name); value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	ts.Check(cmd.Start())
	ts.Defer(func() {
		if cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	ts.Value(programsKey{}).(programs)[args[0]] = cmd
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

func appears(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: appears FILE REGEXP")
	}
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	var data []byte
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if data, err = os.ReadFile(ts.MkAbs(args[0])); err == nil && pattern.Match(data) {
			return
		}
	}
	ts.Fatalf("%s does not match %q after %v:\n%s", args[0], args[1], patience, bytes.TrimSpace(data))
}

func sendSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signal NAME SIGNAL")
	}
	ts.Check(begun(ts, args[0]).Process.Signal(unix.SignalNum("SIG" + args[1])))
}

func ends(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: ends NAME END")
	}
	cmd := begun(ts, args[0])
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if got, want := endOf(ts, cmd.Wait()), args[1]; got != want {
		ts.Fatalf("it ended with %s, want %s\nstderr:\n%s", got, want, ts.ReadFile(args[0]+".stderr"))
	}
}
