package main

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/starlib/sandbox"
)

// way is how a script and a command line come to an operation of the provider.
type way struct {
	script  string // attributes of sandbox, sb or process, separated by spaces; empty: see why
	command string // a command with its action or flag; empty: see why
	why     string // there is no way
}

// ways has every operation. What can be done in one way can be done in both.
var ways = map[string]way{
	"Provider.Create":  {script: "sandbox.create", command: "create"},
	"Provider.Open":    {script: "sandbox.open", why: "every command takes the name"},
	"Provider.List":    {script: "sandbox.list", command: "ps"},
	"Provider.Destroy": {script: "sandbox.destroy", command: "rm"},
	"Provider.Sweep":   {script: "sandbox.gc", command: "gc"},
	"Provider.Close":   {why: "whoever opens the provider closes it"},

	"Sandbox.Name":      {script: "sb.name", command: "ps"},
	"Sandbox.Info":      {script: "sb.image sb.egress sb.status", command: "ps"},
	"Sandbox.Exec":      {script: "sb.exec", command: "exec"},
	"Sandbox.Start":     {script: "sb.spawn", command: "exec --detach"},
	"Sandbox.Process":   {script: "sb.process", why: "the commands for processes take the id or tag"},
	"Sandbox.Processes": {script: "sb.processes", command: "ps"},
	"Sandbox.Kill":      {script: "sb.kill", command: "kill --tag"},
	"Sandbox.KillAll":   {script: "sb.kill_all", command: "kill --all"},
	"Sandbox.Suspend":   {script: "sb.suspend", command: "suspend"},
	"Sandbox.Resume":    {script: "sb.resume", command: "resume"},
	"Sandbox.Destroy":   {script: "sb.destroy", command: "rm"},
	"Sandbox.Stats":     {script: "sb.stats", command: "stats"},
	// On it are built three things that a person wants of a server.
	"Sandbox.Dial": {script: "sb.http sb.wait_port sb.forward", command: "http, wait-port, port-forward"},

	"FileSystem.ReadFile":  {script: "sb.read sb.read_bytes", command: "files read"},
	"FileSystem.OpenFile":  {script: "sb.download", command: "cp, files read"},
	"FileSystem.WriteFile": {script: "sb.write", command: "files write"},
	"FileSystem.Stat":      {script: "sb.stat sb.exists", command: "files stat"},
	"FileSystem.ReadDir":   {script: "sb.ls", command: "files ls"},
	"FileSystem.Glob":      {script: "sb.glob", command: "files glob"},
	"FileSystem.Mkdir":     {script: "sb.mkdir", command: "files mkdir"},
	"FileSystem.Remove":    {script: "sb.remove", command: "files rm"},
	"FileSystem.Rename":    {script: "sb.rename", command: "files mv"},
	"FileSystem.Upload":    {script: "sb.upload", command: "cp"},
	"FileSystem.Download":  {script: "sb.download", command: "cp"},

	"Process.ID":         {script: "process.id", command: "ps"},
	"Process.PID":        {script: "process.pid", command: "ps"},
	"Process.Info":       {script: "process.running", command: "ps"},
	"Process.Wait":       {script: "process.wait", command: "wait"},
	"Process.Signal":     {script: "process.kill", command: "kill --signal"},
	"Process.Output":     {script: "process.stdout process.stderr", command: "logs"},
	"Process.Follow":     {script: "process.wait", command: "logs --follow"},
	"Process.Write":      {script: "process.write", command: "send"},
	"Process.CloseStdin": {script: "process.close_stdin", command: "send --close"},
}

// TestEveryOperationHasTwoWays fails for a new method of the contract until
// there are a builtin and a command for it, and for a builtin without a command.
func TestEveryOperationHasTwoWays(t *testing.T) {
	builtins := map[string]bool{}
	for prefix, names := range map[string][]string{
		"sandbox": sandbox.Module.AttrNames(),
		"sb":      (*sandbox.Sandbox)(nil).AttrNames(),
		"process": (*sandbox.Process)(nil).AttrNames(),
	} {
		for _, name := range names {
			builtins[prefix+"."+name] = false // until it is seen in the table
		}
	}
	app := testApp()
	left := maps.Clone(ways)
	for _, contract := range []reflect.Type{
		reflect.TypeFor[provider.FileSystem](), reflect.TypeFor[provider.Provider](), reflect.TypeFor[provider.Sandbox](), reflect.TypeFor[provider.Process](),
	} {
		for i := range contract.NumMethod() {
			method := contract.Method(i).Name
			if _, isFile := reflect.TypeFor[provider.FileSystem]().MethodByName(method); isFile && contract == reflect.TypeFor[provider.Sandbox]() {
				continue // embedded
			}
			name := contract.Name() + "." + method
			w, ok := left[name]
			delete(left, name)
			if !ok {
				t.Errorf("%s has neither a builtin nor a command: add them, and a line to the table", name)
				continue
			}
			if (w.script == "" || w.command == "") && w.why == "" {
				t.Errorf("%s lacks a way and a reason for it", name)
			}
			for _, builtin := range strings.Fields(w.script) {
				if _, ok := builtins[builtin]; !ok {
					t.Errorf("%s: there is no %s", name, builtin)
				}
				builtins[builtin] = true
			}
			for _, command := range strings.FieldsFunc(w.command, func(r rune) bool { return r == ',' }) {
				if !hasCommand(app.Commands, strings.Fields(command)) {
					t.Errorf("%s: there is no capyrun %s", name, command)
				}
			}
		}
	}
	for name := range left {
		t.Errorf("the table has %s, the contract has not", name)
	}
	for _, builtin := range slices.Sorted(maps.Keys(builtins)) {
		if !builtins[builtin] {
			t.Errorf("%s is not in the table: what is its command?", builtin)
		}
	}
}

// hasCommand looks for a command, its action and its flag.
func hasCommand(commands []*cli.Command, words []string) bool {
	for _, c := range commands {
		if !c.HasName(words[0]) {
			continue
		}
		if len(words) == 1 {
			return true
		}
		if flag, ok := strings.CutPrefix(words[1], "--"); ok {
			return slices.ContainsFunc(c.Flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), flag) })
		}
		return hasCommand(c.Subcommands, words[1:])
	}
	return false
}
