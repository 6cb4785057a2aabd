package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/event"
	"github.com/capybara-hq/capyrun/internal/place"
	"github.com/capybara-hq/capyrun/internal/tartree"
	"github.com/capybara-hq/capyrun/provider"
)

func (p *program) cpCommand() *cli.Command {
	return &cli.Command{
		Name:  "cp",
		Usage: "copy files between this host and a sandbox",
		Description: "One of both is NAME:PATH, a path in a sandbox; write ./a:b for a file of this host with a colon.\n" +
			"As with cp -r, a directory is copied with all that is in it: to a new directory of that name, or\n" +
			"into one that exists. SOURCE/. copies what is in it alone. Links in it are copied as links, and one\n" +
			"that leads out of it is refused; sockets, FIFOs and devices are left out.\n\n" +
			"- as TARGET writes a file to standard output as it is, and a directory as a tar stream; - as\n" +
			"SOURCE writes standard input to a file, or unpacks it as a tar stream into a directory that\n" +
			"exists. What was not there before appears once it is complete.\n\n" +
			"Examples:\n" +
			"capyrun cp ./src cap-2f3k9s:/workspace/src\n" +
			"capyrun cp cap-2f3k9s:result.json .\n" +
			"capyrun cp cap-2f3k9s:/workspace/dist - | tar -t",
		ArgsUsage: "SOURCE TARGET",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "max-size", Value: "8G", Usage: "most `BYTES` to write to this host's disk"},
		},
		Action: p.cp,
	}
}

func (p *program) cp(c *cli.Context) error {
	args, err := p.args(c, 2, 2, "a source and a target")
	if err != nil {
		return err
	}
	limit, err := sizeFlag(c, "max-size")
	if err != nil {
		return err
	}
	if limit == 0 {
		limit = tartree.DefaultBytes
	}
	from, to := parsePlace(args[0]), parsePlace(args[1])
	var do func(context.Context, provider.Sandbox) error
	name := from.sandbox
	switch {
	case from.sandbox != "" && to.sandbox == "":
		do = func(ctx context.Context, sb provider.Sandbox) error {
			return p.copyOut(ctx, sb, from.path, to.path, limit)
		}
	case from.sandbox == "" && to.sandbox != "":
		name = to.sandbox
		do = func(ctx context.Context, sb provider.Sandbox) error { return p.copyIn(ctx, sb, from.path, to.path) }
	default:
		return usagef(c.Command, "one of source and target must be in a sandbox, NAME:PATH, and the other on this host")
	}
	return p.within(name, func(sb provider.Sandbox) error {
		return p.shown(func(ctx context.Context) error {
			ctx, span := event.Begin(ctx, event.Event{Kind: event.KindFile, Name: "cp " + args[0] + " " + args[1]})
			err := do(ctx, sb)
			if err == nil { // otherwise the program's end tells it
				span.End(nil, nil)
			}
			return err
		})
	})
}

// A location is one side of a copy.
type location struct {
	sandbox string // empty: this host
	path    string
}

// parsePlace tells NAME:PATH from a path of this host.
func parsePlace(arg string) location {
	name, rest, ok := strings.Cut(arg, ":")
	if !ok || provider.CheckName(name) != nil {
		return location{path: arg}
	}
	if rest == "" {
		rest = provider.Workspace
	}
	return location{name, rest}
}

// insides reports whether a source stands for what is in it, not for itself.
func insides(source string) bool {
	return source == "." || source == ".." || strings.HasSuffix(source, "/.") || strings.HasSuffix(source, "/..")
}

// copyOut copies from the sandbox to this host.
func (p *program) copyOut(ctx context.Context, sb provider.Sandbox, from, to string, limit int64) error {
	info, err := sb.Stat(ctx, from)
	if err != nil {
		return err
	}
	if info.Kind == provider.KindOther {
		return fmt.Errorf("sandbox %s: %s is neither a file nor a directory", sb.Name(), from)
	}
	isDir := info.Kind == provider.KindDirectory
	read := func(w io.Writer) error {
		if isDir {
			return sb.Download(ctx, from, w)
		}
		return readFile(ctx, sb, from, provider.ReadOptions{}, w)
	}
	if to == "-" {
		err := read(&meter{ctx: ctx, w: whileRead{p.stdout}})
		if errors.Is(err, errReaderLeft) {
			return nil
		}
		return err
	}
	target, err := os.Stat(to)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if !isDir && strings.HasSuffix(to, "/") {
			return &configError{to, errors.New("there is no such directory")}
		}
	case err != nil:
		return &configError{to, err}
	case !target.IsDir() && isDir:
		return &configError{to, errors.New("is no directory")}
	case target.IsDir() && !(isDir && insides(from)):
		to = filepath.Join(to, path.Base(info.Path))
	}
	if info, err := os.Lstat(to); err == nil && info.Mode()&fs.ModeSymlink != 0 {
		if to, err = filepath.EvalSymlinks(to); err != nil {
			return &configError{"target", err}
		}
	}
	parent, name := filepath.Dir(filepath.Clean(to)), filepath.Base(to)
	if name == "." || name == ".." || name == "/" {
		parent, name = to, "."
	}
	root, err := os.OpenRoot(parent)
	if err != nil {
		return &configError{to, err}
	}
	defer root.Close()
	return tartree.Pipe(read, func(r io.Reader) error {
		r = &meter{ctx: ctx, r: r}
		if isDir {
			return place.Tree(ctx, root, name, r, tartree.Limits{Bytes: limit})
		}
		return place.File(root, name, r, info.Mode, limit)
	})
}

// readFile streams a file of the sandbox.
func readFile(ctx context.Context, sb provider.Sandbox, name string, opts provider.ReadOptions, w io.Writer) error {
	file, err := sb.OpenFile(ctx, name, opts)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, file)
	return errors.Join(err, file.Close())
}

// copyIn copies from this host to the sandbox.
func (p *program) copyIn(ctx context.Context, sb provider.Sandbox, from, to string) error {
	target, err := sb.Stat(ctx, to)
	if errors.Is(err, fs.ErrNotExist) {
		target, err = nil, nil
	}
	if err != nil {
		return err
	}
	intoDir := target != nil && target.Kind == provider.KindDirectory
	if from == "-" {
		if intoDir {
			return sb.Upload(ctx, to, &meter{ctx: ctx, r: p.stdin})
		}
		return sb.WriteFile(ctx, to, &meter{ctx: ctx, r: p.stdin}, provider.WriteOptions{})
	}
	info, err := os.Stat(from)
	if err != nil {
		return &configError{"source", err}
	}
	abs, err := filepath.Abs(from)
	if err != nil {
		return &configError{"source", err}
	}
	if intoDir && !(info.IsDir() && insides(from)) || target == nil && !info.IsDir() && strings.HasSuffix(to, "/") {
		to = path.Join(to, filepath.Base(abs))
	}
	switch {
	case info.IsDir() && target != nil && !intoDir:
		return fmt.Errorf("sandbox %s: %s: %w", sb.Name(), to, provider.ErrNotDirectory)
	case info.IsDir():
		return copyTreeIn(ctx, sb, from, to)
	case !info.Mode().IsRegular():
		return &configError{from, errors.New("is neither a file nor a directory")}
	}
	file, err := os.Open(from)
	if err != nil {
		return &configError{"source", err}
	}
	defer file.Close()
	return sb.WriteFile(ctx, to, &meter{ctx: ctx, r: file}, provider.WriteOptions{Mode: info.Mode().Perm()})
}

// removeTime bounds the removal of what a copy has left unfinished.
const removeTime = 10 * time.Second

// copyTreeIn copies a directory. One that is not there yet appears once it is
// complete.
func copyTreeIn(ctx context.Context, sb provider.Sandbox, from, to string) error {
	send := func(to string) error {
		return tartree.Pipe(
			func(w io.Writer) error { return tartree.Pack(ctx, w, from) },
			func(r io.Reader) error { return sb.Upload(ctx, to, &meter{ctx: ctx, r: r}) },
		)
	}
	if _, err := sb.Stat(ctx, to); err == nil {
		if err := send(to); err != nil {
			return fmt.Errorf("%w (what came until then is left in %s)", err, to)
		}
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := provider.CleanWritePath("target", to, true); err != nil {
		return err // with the name that was given
	}
	temp := path.Join(path.Dir(path.Clean(to)), ".capyrun-"+rand.Text())
	err := send(temp)
	if err == nil {
		err = sb.Rename(ctx, temp, to)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTime)
		defer cancel()
		if rerr := sb.Remove(ctx, temp); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
	}
	return err
}

// meter passes bytes on and tells how many, once that takes long.
type meter struct {
	ctx   context.Context
	r     io.Reader
	w     io.Writer
	n     int64
	start time.Time
	told  time.Time
}

func (m *meter) Read(b []byte) (int, error) {
	n, err := m.r.Read(b)
	m.count(n)
	return n, err
}

func (m *meter) Write(b []byte) (int, error) {
	n, err := m.w.Write(b)
	m.count(n)
	return n, err
}

func (m *meter) count(n int) {
	m.n += int64(n)
	now := time.Now()
	if m.start.IsZero() {
		m.start, m.told = now, now
	}
	if now.Sub(m.told) < 200*time.Millisecond {
		return
	}
	m.told = now
	rate := float64(m.n) / now.Sub(m.start).Seconds()
	event.Emit(m.ctx, event.Event{Type: event.Progress, Text: fmt.Sprintf("%s, %s/s", size(m.n), size(int64(rate)))})
}
