// Package doctest keeps the examples in the documents true: Go programs are
// compiled, workflows are read, and run where there is an engine.
package doctest

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/capybara-hq/capyrun/internal/testenv"
	"github.com/capybara-hq/capyrun/starlib"
)

// example is a fenced block of a document.
type example struct {
	place string // file:line
	lang  string
	text  string
}

// examples reads the fenced blocks of all documents.
func examples(t *testing.T, langs ...string) []example {
	t.Helper()
	var all []example
	err := filepath.WalkDir(testenv.Root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || d.Name() == "build") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(testenv.Root(), path)
		all = append(all, blocks(rel, string(data))...)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var some []example
	for _, e := range all {
		for _, lang := range langs {
			if e.lang == lang {
				some = append(some, e)
			}
		}
	}
	if len(some) == 0 {
		t.Fatalf("no example in %v in any document", langs)
	}
	return some
}

// blocks returns the fenced blocks of a document in Markdown.
func blocks(name, text string) []example {
	var all []example
	var open *example
	for i, line := range strings.Split(text, "\n") {
		lang, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &example{place: fmt.Sprintf("%s:%d", name, i+1), lang: strings.TrimSpace(lang)}
		case fence:
			all = append(all, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return all
}

func TestBlocks(t *testing.T) {
	got := blocks("x.md", "text\n```go\na\nb\n```\n```\nc\n```\n")
	if len(got) != 2 || got[0] != (example{"x.md:2", "go", "a\nb\n"}) || got[1] != (example{"x.md:6", "", "c\n"}) {
		t.Errorf("got %q", got)
	}
}

func TestGoCompiles(t *testing.T) {
	for _, e := range examples(t, "go") {
		t.Run(e.place, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(e.text), 0o666); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("go", "vet", file)
			cmd.Dir = testenv.Root()
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

func TestWorkflowsParse(t *testing.T) {
	for _, e := range examples(t, "python") {
		t.Run(e.place, func(t *testing.T) {
			if _, err := starlib.New(nil, starlib.Options{}).Describe(save(t, e)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestWorkflowsRun(t *testing.T) {
	testenv.Image(t, testenv.Debian)
	for _, e := range examples(t, "python") {
		t.Run(e.place, func(t *testing.T) {
			var stderr bytes.Buffer
			cmd := exec.Command(testenv.Binary(t), "run", save(t, e))
			cmd.Stderr = &stderr
			if out, err := cmd.Output(); err != nil {
				t.Errorf("%v\n%s%s", err, out, &stderr)
			}
		})
	}
}

func save(t *testing.T, e example) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "example.star")
	if err := os.WriteFile(file, []byte(e.text), 0o666); err != nil {
		t.Fatal(err)
	}
	return file
}
