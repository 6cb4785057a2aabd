package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/provider"
	"github.com/capybara-hq/capyrun/report"
)

func (p *program) filesCommand() *cli.Command {
	return &cli.Command{
		Name:  "files",
		Usage: "work with the files of a sandbox",
		Description: "None of it needs a program in the sandbox's image. Paths are absolute, or relative to /workspace;\n" +
			"what changes a file must stay in /workspace, /tmp or /skills. 'capyrun cp' copies.\n\n" +
			"Example: capyrun files ls cap-2f3k9s /workspace",
		ArgsUsage: "ACTION NAME [ARGUMENT...]",
		Action: func(c *cli.Context) error {
			return usagef(c.Command, "say what to do: ls, stat, glob, read, write, mkdir, mv or rm")
		},
		Subcommands: []*cli.Command{
			p.filesCmd("ls", "list a directory", "NAME [PATH]", "capyrun files ls --recursive cap-2f3k9s src", 1, 2,
				[]cli.Flag{jsonFlag, &cli.BoolFlag{Name: "recursive", Aliases: []string{"R"}, Usage: "also all that is below it"}},
				func(c *cli.Context, sb provider.Sandbox, args []string) error {
					dir := provider.Workspace
					if len(args) > 0 {
						dir = args[0]
					}
					list, err := sb.ReadDir(p.ctx, dir, c.Bool("recursive"))
					if err != nil {
						return err
					}
					return p.showFiles(c, list)
				}),
			p.filesCmd("stat", "describe a file, following links", "NAME PATH", "capyrun files stat --json cap-2f3k9s a.out", 2, 2,
				[]cli.Flag{jsonFlag},
				func(c *cli.Context, sb provider.Sandbox, args []string) error {
					info, err := sb.Stat(p.ctx, args[0])
					switch {
					case err != nil:
						return err
					case c.Bool("json"):
						return p.stdout.json(info)
					}
					return p.showFiles(c, []provider.FileInfo{*info})
				}),
			p.filesCmd("glob", "list the paths that match a pattern", "NAME PATTERN", "capyrun files glob cap-2f3k9s '**/*.go'", 2, 2, nil,
				func(c *cli.Context, sb provider.Sandbox, args []string) error {
					paths, err := sb.Glob(p.ctx, args[0])
					for _, path := range paths {
						fmt.Fprintln(p.stdout, p.forPeople(path))
					}
					return err
				}),
			p.filesCmd("read", "write a file to standard output", "NAME PATH", "capyrun files read cap-2f3k9s /etc/os-release", 2, 2,
				[]cli.Flag{
					&cli.Int64Flag{Name: "offset", Usage: "begin after this many `BYTES`"},
					&cli.StringFlag{Name: "max-bytes", DefaultText: "all", Usage: "at most this many `BYTES`, such as 1M"},
				},
				func(c *cli.Context, sb provider.Sandbox, args []string) error {
					max, err := sizeFlag(c, "max-bytes")
					if err != nil {
						return err
					}
					err = readFile(p.ctx, sb, args[0], provider.ReadOptions{Offset: c.Int64("offset"), Max: max}, whileRead{p.stdout})
					if errors.Is(err, errReaderLeft) {
						return nil
					}
					return err
				}),
			p.filesCmd("write", "write standard input to a file", "NAME PATH", "echo hello | capyrun files write cap-2f3k9s greeting.txt", 2, 2,
				[]cli.Flag{
					&cli.StringFlag{Name: "mode", DefaultText: "that of the file, else 644", Usage: "permission `BITS` in octal"},
					&cli.BoolFlag{Name: "append", Usage: "add to the file"},
				},
				func(c *cli.Context, sb provider.Sandbox, args []string) error {
					opts := provider.WriteOptions{Append: c.Bool("append")}
					if c.IsSet("mode") {
						bits, err := strconv.ParseUint(c.String("mode"), 8, 32)
						if err != nil || bits == 0 || bits > 0o777 {
							return usagef(c.Command, "--mode %s: must be octal permission bits, 1 to 777", c.String("mode"))
						}
						opts.Mode = fs.FileMode(bits)
					}
					return sb.WriteFile(p.ctx, args[0], struct{ io.Reader }{p.stdin}, opts)
				}),
			p.filesCmd("mkdir", "make a directory and its parents", "NAME PATH", "capyrun files mkdir cap-2f3k9s build/out", 2, 2, nil,
				func(_ *cli.Context, sb provider.Sandbox, args []string) error { return sb.Mkdir(p.ctx, args[0]) }),
			p.filesCmd("mv", "rename a file or directory", "NAME OLD NEW", "capyrun files mv cap-2f3k9s draft.txt final.txt", 3, 3, nil,
				func(_ *cli.Context, sb provider.Sandbox, args []string) error {
					return sb.Rename(p.ctx, args[0], args[1])
				}),
			p.filesCmd("rm", "remove a file, with -r a directory", "NAME PATH", "capyrun files rm -r cap-2f3k9s build", 2, 2,
				[]cli.Flag{&cli.BoolFlag{Name: "recursive", Aliases: []string{"r"}, Usage: "also a directory with all that is in it"}},
				func(c *cli.Context, sb provider.Sandbox, args []string) error {
					if !c.Bool("recursive") {
						if info, err := sb.Stat(p.ctx, args[0]); err == nil && info.Kind == provider.KindDirectory {
							return usagef(c.Command, "%s is a directory; -r removes it with all that is in it", args[0])
						}
					}
					return sb.Remove(p.ctx, args[0])
				}),
		},
	}
}

// filesCmd makes one of the actions. act gets the arguments after the sandbox.
func (p *program) filesCmd(name, usage, args, example string, least, most int, flags []cli.Flag, act func(*cli.Context, provider.Sandbox, []string) error) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, ArgsUsage: args, Flags: flags,
		Description: "Example: " + example,
		Action: func(c *cli.Context) error {
			given, err := p.args(c, least, most, args)
			if err != nil {
				return err
			}
			return p.within(given[0], func(sb provider.Sandbox) error { return act(c, sb, given[1:]) })
		},
	}
}

func (p *program) showFiles(c *cli.Context, list []provider.FileInfo) error {
	if c.Bool("json") {
		return p.stdout.json(append([]provider.FileInfo{}, list...)) // never null
	}
	for _, f := range list {
		mode := f.Mode.Perm()
		switch f.Kind {
		case provider.KindDirectory:
			mode |= fs.ModeDir
		case provider.KindSymlink:
			mode |= fs.ModeSymlink
		case provider.KindOther:
			mode |= fs.ModeIrregular
		}
		line := fmt.Sprintf("%s %12d %s %s", mode, f.Size, f.ModTime.Local().Format(time.DateTime), p.forPeople(f.Path))
		if f.Target != "" {
			line += " -> " + p.forPeople(f.Target)
		}
		fmt.Fprintln(p.stdout, line)
	}
	return nil
}

// forPeople cleans a name from a sandbox where a terminal would act upon it.
func (p *program) forPeople(name string) string {
	if p.stdout.terminal() {
		return report.Clean(name)
	}
	return name
}
