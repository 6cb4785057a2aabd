package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/internal/testenv"
)

func testApp() *cli.App { return (&program{stdout: &output{}, settings: &settings{}}).app() }

func TestArrange(t *testing.T) {
	for in, want := range map[string]string{
		"run x.star":                            "run x.star",
		"run x.star -p a=b --timeout 3s":        "run -p a=b --timeout 3s x.star",
		"run -o=json x.star -p a=b":             "run -o=json -p a=b x.star",
		"run - -p a=b":                          "run -p a=b -",
		"run x.star -p --":                      "run -p -- x.star", // a value, whatever it looks like
		"run x.star -- -p a=b":                  "run x.star | -p a=b",
		"run x.star --":                         "run x.star |",
		"run x.star --endpoint e --color never": "--endpoint e --color never run x.star",
		"ps --allow-open-egress -q":             "--allow-open-egress ps -q",
		"--endpoint e ps":                       "--endpoint e ps",
		"exec -e A=1 n ls -l --timeout 3s":      "exec -e A=1 n ls -l --timeout 3s",
		"exec n -e A=1 ls -l":                   "exec -e A=1 n ls -l",
		"exec n -e A=1 -- ls -l":                "exec -e A=1 n | ls -l",
		"exec n ls -- -l":                       "exec n ls -- -l",
		"shell n ls -l":                         "shell n ls -l",
		"files ls n /tmp -R --color never":      "--color never files ls -R n /tmp",
		"files read n -- -x":                    "files read n | -x",
		"cp - n:x":                              "cp - n:x",
		"":                                      "",
		"--help":                                "--help",
		"run --help":                            "run --help",
	} {
		got, tail, err := arrange(testApp(), rawCommands, strings.Fields(in))
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		line := strings.Join(got, " ")
		if tail != nil {
			line = strings.TrimRight(line+" | "+strings.Join(tail, " "), " ")
		}
		if diff := cmp.Diff(want, line); diff != "" {
			t.Errorf("%s:\n%s", in, diff)
		}
	}
}

func FuzzArrange(f *testing.F) {
	f.Add("run x.star -p a=b -- c")
	f.Add("exec n -e A=1 ls -l")
	f.Add("--endpoint= -- --")
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Fields(line)
		got, tail, err := arrange(testApp(), rawCommands, args)
		if err != nil {
			return
		}
		n := len(got) + len(tail)
		if tail != nil {
			n++ // the "--"
		}
		if n != len(args) {
			t.Errorf("%q became %q and %q", args, got, tail)
		}
	})
}

// TestDocumentedCommands takes every command line that the help texts and the
// documents show, and sees that it would be accepted.
func TestDocumentedCommands(t *testing.T) {
	var text strings.Builder
	var collect func([]*cli.Command)
	collect = func(commands []*cli.Command) {
		for _, c := range commands {
			// The command help is the library's own.
			if c.Name != "help" && !strings.Contains(c.Description, "Example") {
				t.Errorf("the help of %s has no example", c.HelpName)
			}
			text.WriteString(c.Description + "\n")
			collect(c.Subcommands)
		}
	}
	collect(testApp().Commands)
	readme, err := os.ReadFile(filepath.Join(testenv.Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, block := range strings.Split(string(readme), "```sh\n")[1:] {
		block, _, _ = strings.Cut(block, "```")
		text.WriteString(block)
	}
	found := 0
	// A line of its own, or a part of a pipeline or list.
	for _, m := range regexp.MustCompile(`(?m)(?:^|\| |&& |\$\()(?:Example: )?capyrun +([^|&)\n]+)`).FindAllStringSubmatch(text.String(), -1) {
		line, _, _ := strings.Cut(m[1], "  #")
		found++
		if _, _, err := arrange(testApp(), rawCommands, strings.Fields(line)); err != nil {
			t.Errorf("capyrun %s: %v", line, err)
		}
	}
	if found < 30 {
		t.Errorf("found only %d examples", found)
	}
}
