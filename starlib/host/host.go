// Package host is the Starlark module through which a workflow sees the machine
// that it runs on. The comments on its functions are the manual for authors of
// workflows.
package host

import (
	"bytes"
	"fmt"

	"go.starlark.net/starlark"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// New returns the host module of a run:
//
//   - read(path): the content of a file, at most 64 MiB
//   - glob(pattern): the files that match, sorted; ** is any number of
//     directories
//   - write(path, data): writes a file below the directory of --out
//   - env(name, default): a variable that --allow-env names
//   - args: the arguments after --
//
// Relative paths are relative to the directory of the workflow's file. Reads are
// confined to it and to the directories of --allow-read, writes to that of --out,
// with no way out by .. or by links.
func New(args []string) *script.Module {
	m := script.NewModule("host", map[string]script.Function{
		"read":  read,
		"glob":  glob,
		"write": write,
		"env":   env,
	})
	list := make(starlark.Tuple, len(args))
	for i, arg := range args {
		list[i] = starlark.String(arg)
	}
	m.Members["args"] = list
	return m
}

func read(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var path string
	if err := script.Unpack(args, kwargs, "path", &path); err != nil {
		return nil, err
	}
	data, err := t.Files.Read(path)
	return starlark.String(data), err
}

func glob(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var pattern string
	if err := script.Unpack(args, kwargs, "pattern", &pattern); err != nil {
		return nil, err
	}
	names, err := t.Files.Glob(t.Ctx, pattern)
	if err != nil {
		return nil, err
	}
	return script.FromGo(names)
}

func write(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var path string
	var data script.Data
	if err := script.Unpack(args, kwargs, "path", &path, "data", &data); err != nil {
		return nil, err
	}
	target, err := t.Files.Create(path)
	if err != nil {
		return nil, err
	}
	return starlark.None, target.Write(bytes.NewReader(data), 0o666)
}

func env(t *script.Thread, _ *starlark.Thread, args starlark.Tuple, kwargs []starlark.Tuple) (starlark.Value, error) {
	var name string
	var def starlark.Value
	if err := script.Unpack(args, kwargs, "name", &name, "default?", &def); err != nil {
		return nil, err
	}
	if !t.AllowsEnv(name) {
		return nil, &script.Failure{
			Msg:  fmt.Sprintf("the workflow may not read the variable %s", name),
			Hint: "--allow-env " + name + " allows it",
		}
	}
	value, set := t.Getenv(name)
	switch {
	case set:
		return starlark.String(value), nil
	case def != nil:
		return def, nil
	}
	return nil, fmt.Errorf("the variable %s is not set", name)
}
