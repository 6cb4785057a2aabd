package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/capybara-hq/capyrun/docker"
	"github.com/capybara-hq/capyrun/internal/tartree"
	"github.com/capybara-hq/capyrun/provider"
)

// workerArg makes this program a worker: a runner whose memory can be measured,
// since nothing else happens in its process. It takes one order a line, its
// words divided by tabs, and answers each with the peak of its memory in KiB or
// with an error. Its first line is the name of its sandbox.
const workerArg = "worker"

func work(ctx context.Context, o options) error {
	p, err := docker.New(ctx, docker.Config{AgentBinary: o.binary})
	if err != nil {
		return err
	}
	defer p.Close()
	sb, err := p.Create(ctx, provider.Spec{Image: o.image, CPU: min(2, float64(runtime.NumCPU()))})
	if err != nil {
		return err
	}
	defer sb.Destroy(ctx)
	fmt.Println(sb.Name())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		// The peak starts anew.
		if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
			return err
		}
		if err := order(ctx, o, p, sb, strings.Split(lines.Text(), "\t")); err != nil {
			fmt.Printf("error %q\n", err.Error())
			continue
		}
		kib, err := memory("VmHWM")
		if err != nil {
			return err
		}
		fmt.Println(kib)
	}
	return lines.Err()
}

func order(ctx context.Context, o options, p provider.Provider, sb provider.Sandbox, words []string) error {
	switch words[0] {
	case "upload":
		return upload(ctx, sb, words[1], words[2])
	case "download":
		return download(ctx, sb, words[1], words[2])
	case "output":
		r, err := sb.Exec(ctx, provider.Command{Shell: words[1]})
		if err == nil && (!r.OK() || !r.Truncated || int64(len(r.Stdout)) != provider.DefaultMaxOutput) {
			err = fmt.Errorf("status %d, %d bytes of output", r.ExitCode, len(r.Stdout))
		}
		return err
	case "many":
		return many(ctx, p, o.small)
	case "remove":
		return sb.Remove(ctx, words[1])
	case "mkdir":
		return sb.Mkdir(ctx, words[1])
	}
	return fmt.Errorf("unknown order %q", words[0])
}

// upload does what `sb.upload` does.
func upload(ctx context.Context, sb provider.Sandbox, host, inside string) error {
	fi, err := os.Stat(host)
	if err != nil {
		return err
	}
	if !fi.IsDir() {
		f, err := os.Open(host)
		if err != nil {
			return err
		}
		defer f.Close()
		return sb.WriteFile(ctx, inside, f, provider.WriteOptions{Mode: fi.Mode().Perm()})
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(tartree.Pack(ctx, w, host)) }()
	err = sb.Upload(ctx, inside, r)
	r.CloseWithError(io.ErrClosedPipe)
	return err
}

// download does what `sb.download` does.
func download(ctx context.Context, sb provider.Sandbox, inside, host string) error {
	info, err := sb.Stat(ctx, inside)
	if err != nil {
		return err
	}
	if info.Kind != provider.KindDirectory {
		from, err := sb.OpenFile(ctx, inside, provider.ReadOptions{})
		if err != nil {
			return err
		}
		defer from.Close()
		to, err := os.Create(host)
		if err != nil {
			return err
		}
		_, err = io.Copy(to, from)
		return errors.Join(err, to.Close())
	}
	if err := os.Mkdir(host, 0o755); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { w.CloseWithError(sb.Download(ctx, inside, w)) }()
	err = tartree.Unpack(ctx, r, host, tartree.Limits{})
	r.CloseWithError(io.ErrClosedPipe)
	return err
}

// memory reads a line of /proc/self/status, in KiB.
func memory(field string) (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, field+":"); ok {
			return strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		}
	}
	return 0, errors.New("no " + field + " in /proc/self/status")
}

// worker is the other end.
type worker struct {
	sandbox string
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
}

func startWorker(b *bench) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	binary, err := filepath.Abs(b.binary)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "-binary", binary, "-image", b.image, "-small-image", b.small, workerArg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	w := &worker{cmd: cmd, in: in, out: bufio.NewScanner(out)}
	if !w.out.Scan() {
		w.stop()
		return nil, errors.New("the worker has no sandbox")
	}
	w.sandbox = w.out.Text()
	return w, nil
}

// do gives an order and returns the worker's peak of memory in KiB.
func (w *worker) do(words ...string) (int64, error) {
	if _, err := fmt.Fprintln(w.in, strings.Join(words, "\t")); err != nil {
		return 0, err
	}
	if !w.out.Scan() {
		return 0, errors.Join(errors.New("the worker has ended"), w.out.Err())
	}
	if text, failed := strings.CutPrefix(w.out.Text(), "error "); failed {
		return 0, errors.New(text)
	}
	return strconv.ParseInt(w.out.Text(), 10, 64)
}

func (w *worker) stop() {
	w.in.Close()
	w.cmd.Wait()
}
