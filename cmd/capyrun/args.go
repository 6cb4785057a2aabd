package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/starlib/script"
)

// arrange puts a command line into the order that urfave/cli understands: it
// stops to look for flags at the first argument that is none, and takes global
// flags before the command alone. What follows "--" comes back as tail; nil
// means that there was no "--".
//
// A command whose name is in raw ends its flags at its second argument, because
// from there on it is somebody else's command line.
func arrange(app *cli.App, raw map[string]bool, args []string) (arranged, tail []string, err error) {
	var global, path, own, rest []string
	var cmd *cli.Command
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch {
		case arg == "--":
			tail = append([]string{}, args[i+1:]...)
			i = len(args)
		case len(arg) > 1 && arg[0] == '-':
			name, _, joined := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			words := []string{arg}
			flag, isOwn := findFlag(app, cmd, name)
			if flag == nil {
				return nil, nil, unknownFlag(app, cmd, arg)
			}
			if takesValue(flag) && !joined {
				if i+1 == len(args) {
					return nil, nil, usagef(cmd, "flag %s needs a value", arg)
				}
				i++
				words = append(words, args[i])
			}
			if isOwn {
				own = append(own, words...)
			} else {
				global = append(global, words...)
			}
		case cmd == nil:
			if cmd = app.Command(arg); cmd == nil {
				return nil, nil, unknownCommand(nil, app.Commands, arg)
			}
			path = append(path, cmd.Name)
		case len(cmd.Subcommands) > 0:
			sub := slices.IndexFunc(cmd.Subcommands, func(sub *cli.Command) bool { return sub.HasName(arg) })
			if sub < 0 {
				return nil, nil, unknownCommand(cmd, cmd.Subcommands, arg)
			}
			cmd = cmd.Subcommands[sub]
			path = append(path, cmd.Name)
		default:
			rest = append(rest, arg)
			if raw[cmd.Name] && len(rest) == 2 {
				rest = append(rest, args[i+1:]...)
				i = len(args)
			}
		}
	}
	if cmd != nil && cmd.Name == "help" && len(rest) > 0 && app.Command(rest[0]) == nil {
		return nil, nil, unknownCommand(nil, app.Commands, rest[0])
	}
	// The first of the rest is no flag, or a single "-", so that no "--" is needed.
	return slices.Concat(global, path, own, rest), tail, nil
}

// helpFlag is the flag that urfave/cli adds to everything.
var helpFlag = &cli.BoolFlag{Name: "help", Aliases: []string{"h"}}

// findFlag finds a flag of the command or else a global one.
func findFlag(app *cli.App, cmd *cli.Command, name string) (flag cli.Flag, own bool) {
	find := func(flags []cli.Flag) cli.Flag {
		for _, f := range append(flags, helpFlag) {
			for _, n := range f.Names() {
				if n == name {
					return f
				}
			}
		}
		return nil
	}
	if cmd != nil {
		if f := find(cmd.Flags); f != nil {
			return f, true
		}
	}
	return find(app.Flags), false
}

func takesValue(flag cli.Flag) bool {
	f, ok := flag.(cli.DocGenerationFlag)
	return ok && f.TakesValue()
}

func unknownFlag(app *cli.App, cmd *cli.Command, arg string) error {
	flags := append([]cli.Flag{helpFlag}, app.Flags...)
	if cmd != nil {
		flags = append(flags, cmd.Flags...)
	}
	var names []string
	for _, f := range flags {
		for _, name := range f.Names() {
			if len(name) > 1 {
				names = append(names, name)
			}
		}
	}
	name, _, _ := strings.Cut(arg, "=")
	return usagef(cmd, "unknown flag %s%s", name, didYouMean("--", strings.TrimLeft(name, "-"), names))
}

func unknownCommand(in *cli.Command, commands []*cli.Command, name string) error {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	return usagef(in, "unknown command %q%s", name, didYouMean("", name, names))
}

// didYouMean suggests one of the names; all are shown with the prefix.
func didYouMean(prefix, name string, names []string) string {
	if near := script.Nearest(name, names); near != "" {
		return fmt.Sprintf(" (did you mean %s%s?)", prefix, near)
	}
	return ""
}

// noNegative refuses durations below zero.
func noNegative(c *cli.Context, flags ...string) error {
	for _, name := range flags {
		if d := c.Duration(name); d < 0 {
			return usagef(c.Command, "--%s %v: must be a time such as 90s, or 0 for none", name, d)
		}
	}
	return nil
}

// A usageError is a command line that cannot be carried out as it stands.
type usageError struct {
	command string // empty: the program's own part of the line
	msg     string
}

func (e *usageError) Error() string { return e.msg }

func usagef(cmd *cli.Command, format string, args ...any) error {
	e := &usageError{msg: fmt.Sprintf(format, args...)}
	if cmd != nil {
		e.command = strings.TrimPrefix(cmd.HelpName, "capyrun ")
	}
	return e
}
