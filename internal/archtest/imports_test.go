// Package archtest holds the rules of who may import whom.
package archtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/capybara-hq/capyrun/"

// rule bans imports from packages. Patterns are import paths, below the module
// where they begin with "./"; a "/..." at the end stands for the path itself and
// all that is below it, and "std" for the standard library.
type rule struct {
	from   []string // the packages it holds for
	except []string // but not for these
	banned []string
	allow  []string // lets part of banned through
	deep   bool     // also what the imported packages import in turn
	tests  bool     // also the imports of test files
	reason string
}

var rules = []rule{
	{
		from: []string{"./starlib/..."}, banned: []string{"./docker/...", "./egress/...", "github.com/urfave/cli/..."}, deep: true, tests: true,
		reason: "a workflow runs on any provider, and whoever embeds the library wants neither a Docker client nor a command line",
	},
	{
		from: []string{"./docker/..."}, except: []string{"./docker/bench"}, banned: []string{"./starlib/...", "./egress/..."}, deep: true,
		reason: "the provider is used without Starlark, and the proxy runs beside it, not in it",
	},
	{
		from: []string{"./agent/..."}, banned: []string{"github.com/docker/...", "go.starlark.net/...", "./docker/...", "./starlib/..."}, deep: true, tests: true,
		reason: "the agent is the same for every engine, and each sandbox pays for what it links",
	},
	{
		from: []string{"./..."}, except: []string{"./docker/..."}, banned: []string{"github.com/docker/docker/..."}, tests: true,
		reason: "the Docker client changes its name and its interface: one folder has to follow",
	},
	{
		from: []string{"./..."}, except: []string{"./cmd/capyrun"}, banned: []string{"github.com/urfave/cli/..."}, tests: true,
		reason: "only the program has a command line",
	},
	{
		from: []string{"./provider"}, banned: []string{"..."}, allow: []string{"std"},
		reason: "the contract between the parts depends on none of them",
	},
	{
		from: []string{"./provider/ports"}, banned: []string{"..."}, allow: []string{"std", "./provider"},
		reason: "it is built on the contract, and so works with every provider",
	},
	{
		from: []string{"./event"}, banned: []string{"..."}, allow: []string{"std"},
		reason: "everything emits events, so nothing may come with them",
	},
	{
		from: []string{"./starlib/..."}, except: []string{"./starlib", "./starlib/starlibtest"}, banned: []string{"./starlib"}, deep: true,
		reason: "modules are put together by starlib, not the other way round",
	},
	{
		from: []string{"./report/..."}, banned: []string{"./docker/...", "./agent/...", "./starlib/...", "github.com/docker/...", "go.starlark.net/..."}, deep: true,
		reason: "everything that shows a run is made from its events alone",
	},
	{
		from: []string{"./..."}, except: []string{"./internal/...", "./cmd/..."}, banned: []string{"./cmd/..."}, tests: true,
		reason: "the program uses the library, not the other way round",
	},
}

// pkg is what "go list -json" says of a package.
type pkg struct {
	ImportPath   string
	Standard     bool
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func TestImports(t *testing.T) {
	pkgs := list(t, filepath.Join("..", ".."))
	for _, v := range check(pkgs, rules) {
		t.Error(v)
	}
}

// TestRulesNameWhatExists keeps a renamed folder from switching a rule off.
func TestRulesNameWhatExists(t *testing.T) {
	pkgs := list(t, filepath.Join("..", ".."))
	later := []string{"./egress/..."} // no such package yet, but its rule holds from its first day
	for _, r := range rules {
		for _, pattern := range slices.Concat(r.from, r.except, r.banned) {
			if pattern == "..." || slices.Contains(later, pattern) {
				continue
			}
			if !slices.ContainsFunc(pkgs, func(p pkg) bool { return matches(pattern, p) }) {
				t.Errorf("no package matches %s: a rule that names it holds nothing (%s)", pattern, r.reason)
			}
		}
	}
}

// TestCheckerFindsViolations proves on made-up packages that the rules can fail.
func TestCheckerFindsViolations(t *testing.T) {
	p := func(path string, imports ...string) pkg { return pkg{ImportPath: path, Imports: imports} }
	std := pkg{ImportPath: "fmt", Standard: true}
	for name, test := range map[string]struct {
		pkgs []pkg
		want int
	}{
		"clean":              {[]pkg{std, p(module+"provider", "fmt"), p(module+"docker", module+"provider", "github.com/docker/docker/client")}, 0},
		"direct":             {[]pkg{p(module+"agent", "github.com/docker/docker/client"), p("github.com/docker/docker/client")}, 2}, // the agent's rule, and the client's
		"through another":    {[]pkg{p(module+"starlib", module+"tool"), p(module+"tool", module+"docker"), p(module + "docker")}, 1},
		"below the folder":   {[]pkg{p(module+"docker/socketproxy", module+"starlib/flow"), p(module + "starlib/flow")}, 1},
		"not of std":         {[]pkg{p(module+"provider", module+"event"), p(module + "event")}, 1},
		"a like name is not": {[]pkg{p(module+"dockerish", "fmt"), p(module+"starlib", module+"dockerish"), std}, 0},
		"in a test": {[]pkg{
			{ImportPath: module + "report", XTestImports: []string{"github.com/urfave/cli/v2"}}, p("github.com/urfave/cli/v2"),
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := check(test.pkgs, rules); len(got) != test.want {
				t.Errorf("found %d violations, want %d:\n%s", len(got), test.want, strings.Join(got, "\n"))
			}
		})
	}
}

// list asks the go command for all packages of the module and all that they need.
func list(t *testing.T, dir string) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Imports,TestImports,XTestImports", "./...")
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var pkgs []pkg
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return pkgs
		} else if err != nil {
			t.Fatal(err)
		}
		pkgs = append(pkgs, p)
	}
}

// check returns a line for every import that a rule bans.
func check(pkgs []pkg, rules []rule) []string {
	byPath := map[string]pkg{}
	for _, p := range pkgs {
		byPath[p.ImportPath] = p
	}
	find := func(path string) pkg {
		if p, ok := byPath[path]; ok {
			return p
		}
		return pkg{ImportPath: path} // only test files import it
	}
	var violations []string
	for _, r := range rules {
		for _, p := range pkgs {
			if !matchesAny(r.from, p) || matchesAny(r.except, p) {
				continue
			}
			imports := slices.Clone(p.Imports)
			if r.tests {
				imports = slices.Concat(imports, p.TestImports, p.XTestImports)
			}
			seen := map[string]bool{p.ImportPath: true}
			var visit func(chain []string, imports []string)
			visit = func(chain []string, imports []string) {
				for _, path := range imports {
					if seen[path] {
						continue
					}
					seen[path] = true
					imported, chain := find(path), append(slices.Clip(chain), path)
					if matchesAny(r.banned, imported) && !matchesAny(r.allow, imported) {
						violations = append(violations, fmt.Sprintf("%s: %s", strings.Join(chain, " -> "), r.reason))
						continue
					}
					if r.deep {
						visit(chain, imported.Imports)
					}
				}
			}
			visit([]string{p.ImportPath}, imports)
		}
	}
	return violations
}

func matchesAny(patterns []string, p pkg) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return matches(pattern, p) })
}

func matches(pattern string, p pkg) bool {
	if pattern == "..." {
		return true
	}
	if pattern == "std" {
		return p.Standard
	}
	path, below := strings.CutSuffix(pattern, "/...")
	if rest, ok := strings.CutPrefix(path+"/", "./"); ok {
		path = strings.TrimSuffix(module+rest, "/")
	}
	return p.ImportPath == path || below && strings.HasPrefix(p.ImportPath, path+"/")
}
