package starlib_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/capybara-hq/capyrun/starlib"
	"github.com/capybara-hq/capyrun/starlib/starlibtest"
)

// TestChunks runs the files of testdata/chunks. They consist of workflows
// separated by lines of ---. A comment ### /regexp/ says that the workflow fails
// on that line (the innermost of the backtrace) with a message, detail or hint
// that matches; a workflow without one succeeds and leaves no sandbox.
func TestChunks(t *testing.T) {
	files, err := filepath.Glob("testdata/chunks/*.star")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		line := 1
		for chunk := range strings.SplitSeq(string(data), "---\n") {
			t.Run(fmt.Sprintf("%s:%d", filepath.Base(file), line), func(t *testing.T) {
				runChunk(t, file, chunk)
			})
			line += strings.Count(chunk, "\n") + 1
		}
	}
}

var expectation = regexp.MustCompile(`### /(.*)/`)

func runChunk(t *testing.T, file, chunk string) {
	fake := starlibtest.New()
	defer fake.Close()
	rt := starlib.New(fake, starlib.Options{
		Print:    func(line string) { t.Log(line) },
		Args:     []string{"one", "two"},
		AllowEnv: []string{"ALLOWED", "UNSET"},
		Getenv: func(name string) (string, bool) {
			return "value of " + name, name != "UNSET"
		},
	})
	_, err := rt.RunSource(t.Context(), file, []byte(chunk), nil)
	if left := fake.Names(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	var want *regexp.Regexp
	wantLine := 0
	for i, line := range strings.Split(chunk, "\n") {
		if m := expectation.FindStringSubmatch(line); m != nil {
			want, wantLine = regexp.MustCompile("(?m)"+m[1]), i+1
		}
	}
	var e *starlib.Error
	switch {
	case err != nil && !errors.As(err, &e):
		t.Fatalf("%T is not a *starlib.Error", err)
	case want == nil && err != nil:
		t.Error(rendered(e))
	case want == nil:
	case err == nil:
		t.Errorf("succeeded, want an error on line %d that matches %s", wantLine, want)
	case !want.MatchString(e.Msg + "\n" + e.Detail + "\n" + e.Hint):
		t.Errorf("got:\n%s\nwant a match for %s", rendered(e), want)
	case len(e.Backtrace) == 0 || e.Backtrace[len(e.Backtrace)-1].Line != wantLine:
		t.Errorf("got:\n%s\nwant it on line %d", rendered(e), wantLine)
	}
}

func rendered(e *starlib.Error) string {
	var b strings.Builder
	e.Render(&b, false)
	return b.String()
}
