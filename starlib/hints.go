package starlib

import (
	"regexp"
	"strings"
)

// hint is what to write instead of something that other languages have.
type hint struct {
	pattern *regexp.Regexp
	text    string
}

// syntaxHints are tried in order on the source line of a syntax error.
var syntaxHints = []hint{
	{regexp.MustCompile(`^\s*(try|except|finally)\b`), "there are no exceptions: value, error = flow.attempt(fn) calls a function that may fail, flow.defer(fn) cleans up"},
	{regexp.MustCompile(`^\s*raise\b`), `there are no exceptions: fail("message") ends the workflow`},
	{regexp.MustCompile(`^\s*class\b`), "there are no classes: use functions with dicts, or struct(name = value)"},
	{regexp.MustCompile(`^\s*(import|from)\b`), `there is no import: load("lib/x.star", "name") loads from another file; the modules sandbox, flow, assert, host, json, math, time and re are there without`},
	{regexp.MustCompile(`^\s*with\b`), "there is no with: sandboxes are destroyed by themselves at the end, flow.defer(fn) cleans up other things"},
	{regexp.MustCompile(`\b(async|await)\b`), "there is no async: flow.parallel([f, g]) runs functions at the same time"},
	{regexp.MustCompile(`\byield\b`), "there are no generators: return a list"},
	{regexp.MustCompile(`^\s*(global|nonlocal)\b`), "functions cannot assign outer variables: return the value, or keep it in a dict"},
	{regexp.MustCompile(`^\s*del\b`), "there is no del: use d.pop(key) or l.pop(index)"},
	{regexp.MustCompile(`^\s*assert\s`), "assert is a module here: assert.true(x), assert.eq(got, want)"},
	{regexp.MustCompile(`\b(rf|fr|f|F)["']`), `there are no f-strings: "%s and %d" % (x, n), or "{} and {}".format(x, n)`},
	{regexp.MustCompile(`:=`), "there is no :=, assign in a statement of its own"},
	{regexp.MustCompile(`\bis\b`), "there is no is: use =="},
	{regexp.MustCompile(`^\s*@`), "there are no decorators: call the function"},
	{regexp.MustCompile(`\*\*`), "there is no power operator: use math.pow(x, y)"},
	{regexp.MustCompile(`^\s*def\b.*(->|:\s*\w+\s*[,=)])`), "there are no type annotations: write them in the docstring"},
	{regexp.MustCompile(`^\s*\w+\s*:\s*\w+(\[.*\])?\s*=`), "there are no type annotations: write name = value"},
	{regexp.MustCompile(`^\s*print\s+["'\w]`), "print is a function: print(x)"},
	{regexp.MustCompile(`(\+\+|--)\s*$`), "there is no ++: use x += 1"},
	{regexp.MustCompile(`&&|\|\|`), "use and, or"},
}

func hintForSyntax(msg string, at Frame) string {
	if strings.Contains(msg, "does not associate with") {
		return "comparisons cannot be chained: write a < b and b < c"
	}
	line := withoutComment(at.Source)
	for _, h := range syntaxHints {
		if h.pattern.MatchString(line) {
			return h.text
		}
	}
	return ""
}

// withoutComment cuts a comment off a line.
func withoutComment(line string) string {
	var quote rune
	for i, r := range line {
		switch {
		case quote == 0 && r == '#':
			return strings.TrimRight(line[:i], " \t")
		case quote == 0 && (r == '"' || r == '\''):
			quote = r
		case r == quote:
			quote = 0
		}
	}
	return line
}

// nameHints are for names that other dialects and Python have.
var nameHints = map[string]string{
	"open":       "host.read(path) reads a file of the host, sb.read(path) one of a sandbox",
	"os":         "sb.exec runs commands, host.env(name) reads a variable, host.glob(pattern) finds files",
	"sys":        "host.args are the workflow's arguments, fail(message) ends it",
	"subprocess": "sb.exec(cmd) runs a command in a sandbox",
	"requests":   "sb.http(method, port, path) asks a server in a sandbox; commands can make requests where egress lets them",
	"input":      "a workflow cannot ask; give it a parameter of main",
	"exit":       "return from main, or fail(message)",
	"quit":       "return from main, or fail(message)",
	"Exception":  "fail(message) ends the workflow, flow.attempt(fn) calls a function that may fail",
	"isinstance": `compare the type: type(x) == "list"`,
	"sum":        "add in a loop",
	"map":        "use [f(x) for x in list], or flow.map(f, list) to do it in parallel",
	"filter":     "use [x for x in list if f(x)]",
	"round":      "use math.round(x)",
	"null":       "use None",
	"nil":        "use None",
	"true":       "use True",
	"false":      "use False",
	"self":       "there are no classes",
	"exec":       "create a sandbox first: sb = sandbox.create(), then sb.exec(cmd)",
	"sleep":      "use flow.sleep(duration)",
	"parallel":   "use flow.parallel([f, g])",
}

var undefinedName = regexp.MustCompile(`^undefined: (\w+)`)

func hintForName(msg string) string {
	if m := undefinedName.FindStringSubmatch(msg); m != nil {
		return nameHints[m[1]]
	}
	return ""
}

// hintForError is for mistakes that show when the script runs.
func hintForError(e *Error) string {
	switch {
	case strings.Contains(e.Msg, "called recursively"):
		return "recursion is off: use a while loop and a list of what is left to do"
	case strings.Contains(e.Msg, "frozen"):
		return "values are frozen once their module is loaded or parallel functions can see them: make a copy, list(x) or dict(x), or return the value"
	case strings.Contains(e.Msg, "referenced before assignment"):
		return "a function that assigns a name makes it local: give it another name, or pass the value as an argument"
	}
	return ""
}
