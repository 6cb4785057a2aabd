package starlib

import (
	"regexp"
	"strings"

	"go.starlark.net/syntax"
)

// Doc describes a workflow.
type Doc struct {
	// Summary is the docstring of the file.
	Summary string
	// HasMain says that there is a function main.
	HasMain bool
	// Main is the docstring of main, without its Args section.
	Main string
	// Params are main's parameters, in order.
	Params []ParamDoc
	// AnyParam says that main takes parameters of any other name.
	AnyParam bool
}

// ParamDoc describes a parameter of main.
type ParamDoc struct {
	Name        string
	Type        string // of the default, as far as the source tells; else empty
	Default     string // as it is written; empty where the parameter is required
	Required    bool
	KeywordOnly bool
	Help        string // from the Args section of main's docstring
}

// Describe reads a workflow's documentation without running it.
func (rt *Runtime) Describe(file string) (*Doc, error) {
	x, err := rt.open(file, nil)
	if err != nil {
		return nil, err
	}
	defer x.files.Close()
	shown := x.loader.shown(x.main)
	f, err := dialect.Parse(shown, x.loader.sources[shown], 0)
	if err != nil {
		return nil, x.explain(err)
	}
	doc := &Doc{Summary: docstring(f.Stmts)}
	for _, stmt := range f.Stmts {
		if def, ok := stmt.(*syntax.DefStmt); ok && def.Name.Name == "main" {
			doc.describeMain(def, x.loader.sources[shown])
		}
	}
	return doc, nil
}

func (doc *Doc) describeMain(def *syntax.DefStmt, src string) {
	main, help := splitArgs(docstring(def.Body))
	doc.HasMain, doc.Main, doc.Params, doc.AnyParam = true, main, nil, false
	keywordOnly := false
	for _, param := range def.Params {
		switch param := param.(type) {
		case *syntax.Ident:
			doc.Params = append(doc.Params, ParamDoc{Name: param.Name, Required: true, KeywordOnly: keywordOnly, Help: help[param.Name]})
		case *syntax.BinaryExpr: // name = default
			name := param.X.(*syntax.Ident).Name
			doc.Params = append(doc.Params, ParamDoc{
				Name: name, Type: literalType(param.Y), Default: sourceOf(param.Y, src),
				KeywordOnly: keywordOnly, Help: help[name],
			})
		case *syntax.UnaryExpr: // *, *args or **kwargs
			keywordOnly = true
			doc.AnyParam = doc.AnyParam || param.Op == syntax.STARSTAR
		}
	}
}

// docstring returns the text of a leading string literal, without the
// indentation of its lines.
func docstring(stmts []syntax.Stmt) string {
	if len(stmts) == 0 {
		return ""
	}
	expr, ok := stmts[0].(*syntax.ExprStmt)
	if !ok {
		return ""
	}
	lit, ok := expr.X.(*syntax.Literal)
	if !ok || lit.Token != syntax.STRING {
		return ""
	}
	lines := strings.Split(strings.ReplaceAll(lit.Value.(string), "\t", "    "), "\n")
	indent := -1
	for _, line := range lines[1:] {
		if text := strings.TrimLeft(line, " "); text != "" && (indent < 0 || len(line)-len(text) < indent) {
			indent = len(line) - len(text)
		}
	}
	for i, line := range lines {
		if i > 0 && len(line) >= indent && indent > 0 {
			line = line[indent:]
		}
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}

var (
	sectionLine = regexp.MustCompile(`^(\w+):$`)
	argLine     = regexp.MustCompile(`^\s+\*{0,2}(\w+)(?:\s*\([^)]*\))?:\s*(.*)$`)
)

// splitArgs cuts the Args section out of a docstring and returns its entries.
func splitArgs(doc string) (rest string, help map[string]string) {
	help = map[string]string{}
	var kept []string
	inArgs, name, indent := false, "", 0
	for line := range strings.SplitSeq(doc, "\n") {
		if m := sectionLine.FindStringSubmatch(line); m != nil {
			inArgs = m[1] == "Args"
		} else if line != "" && !strings.HasPrefix(line, " ") {
			inArgs = false
		}
		if !inArgs {
			kept = append(kept, line)
			continue
		}
		depth := len(line) - len(strings.TrimLeft(line, " "))
		if m := argLine.FindStringSubmatch(line); m != nil && (name == "" || depth <= indent) {
			name, indent = m[1], depth
			help[name] = m[2]
		} else if text := strings.TrimSpace(line); text != "" && name != "" {
			help[name] = strings.TrimSpace(help[name] + " " + text)
		}
	}
	return strings.TrimSpace(strings.Join(kept, "\n")), help
}

func literalType(expr syntax.Expr) string {
	switch expr := expr.(type) {
	case *syntax.Literal:
		return map[syntax.Token]string{syntax.STRING: "string", syntax.INT: "int", syntax.FLOAT: "float", syntax.BYTES: "bytes"}[expr.Token]
	case *syntax.Ident:
		return map[string]string{"True": "bool", "False": "bool"}[expr.Name]
	case *syntax.UnaryExpr:
		if expr.Op == syntax.MINUS {
			return literalType(expr.X)
		}
	case *syntax.ListExpr:
		return "list"
	case *syntax.DictExpr:
		return "dict"
	case *syntax.TupleExpr:
		return "tuple"
	case *syntax.ParenExpr:
		return literalType(expr.X)
	}
	return ""
}

// sourceOf returns an expression as it is written. Columns count characters.
func sourceOf(expr syntax.Expr, src string) string {
	start, end := expr.Span()
	lines := strings.Split(src, "\n")
	var b strings.Builder
	for n := start.Line; n <= end.Line && int(n) <= len(lines); n++ {
		runes := []rune(lines[n-1])
		from, to := 0, len(runes)
		if n == start.Line {
			from = min(int(start.Col)-1, to)
		}
		if n == end.Line {
			to = max(from, min(int(end.Col)-1, to))
		}
		b.WriteString(strings.TrimSpace(string(runes[from:to])))
	}
	return b.String()
}
