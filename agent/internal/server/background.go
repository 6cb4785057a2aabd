//go:build linux

package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/wire"
	"github.com/capybara-hq/capyrun/provider"
	"golang.org/x/sys/unix"
)

// maxEnded is how many ended background processes are remembered.
const maxEnded = 256

// backgroundState is what only a background process has.
type backgroundState struct {
	ring *ring
	// settled is closed when the process has ended and its output is drained.
	settled chan struct{}
	result  *wire.Result // written before settled is closed
}

// start runs a command in the background: it outlives the session.
func (c *call) start() *wire.Response {
	cs, cmd := c.session.server.cmds, c.req.Command
	if cmd == nil {
		return failure(&provider.InvalidError{Field: "cmd", Reason: "must not be empty"})
	}
	cmd.TTY = nil // what nobody looks at needs no terminal
	max := cmd.MaxOutput
	if max <= 0 {
		max = provider.DefaultMaxOutput
	}
	p := &command{background: true, bg: &backgroundState{ring: newRing(max), settled: make(chan struct{})}}
	if err := cs.start(cmd, p, true, p.bg.ring.add); err != nil {
		return failure(err)
	}
	go cs.attend(p, cmd.Timeout)
	return &wire.Response{Process: cs.describe(p)}
}

// attend waits for a background process's end and enforces its deadline.
func (cs *commands) attend(p *command, timeout time.Duration) {
	timedOut := false
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		select {
		case <-p.done:
		case <-timer.C:
			timedOut = true
			for cs.killTrees(p) != nil && p.alive() {
				time.Sleep(time.Second) // nobody else is there to end it
			}
		}
		timer.Stop()
	}
	<-p.done
	p.stdin.Close()
	p.drain(context.Background())
	p.bg.result = p.result(cs)
	p.bg.result.TimedOut = timedOut
	close(p.bg.settled)
	cs.kept.ended(p.bg.ring)
}

// remember enters a background process and forgets the oldest of those that
// have ended. cs.mu is held.
func (cs *commands) remember(c *command) {
	cs.background = append(cs.background, c)
	ended := 0
	for _, p := range cs.background {
		if !p.alive() {
			ended++
		}
	}
	for i := 0; ended > maxEnded && i < len(cs.background); {
		if cs.background[i].alive() {
			i++
			continue
		}
		cs.kept.forget(cs.background[i].bg.ring)
		cs.background = append(cs.background[:i], cs.background[i+1:]...)
		ended--
	}
}

// find returns a background process by id or else the newest with that tag.
func (cs *commands) find(idOrTag string) (*command, error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var tagged *command
	for _, c := range cs.background {
		if c.id == idOrTag {
			return c, nil
		}
		if c.tag != "" && c.tag == idOrTag {
			tagged = c
		}
	}
	if tagged == nil {
		return nil, &provider.Error{Kind: provider.ErrGone, Err: fmt.Errorf("no background process has the id or tag %q", idOrTag)}
	}
	return tagged, nil
}

func (cs *commands) describe(c *command) *wire.Process {
	p := &wire.Process{
		ID: c.id, PID: c.pid, Command: []byte(c.display), Tag: c.tag, Background: c.background,
		Started: c.started.Round(0), Running: c.alive(), ExitCode: -1,
	}
	if !p.Running {
		if c.status.Signaled() {
			p.Signal = signalName(c.status.Signal())
		} else {
			p.ExitCode = c.status.ExitStatus()
		}
	}
	return p
}

func (c *call) find() *wire.Response {
	cs := c.session.server.cmds
	p, err := cs.find(c.req.ID)
	if err != nil {
		return failure(err)
	}
	return &wire.Response{Process: cs.describe(p)}
}

// list sends all commands that run and the background ones that have ended.
func (c *call) list() *wire.Response {
	cs := c.session.server.cmds
	all := cs.list(func(c *command) bool { return !c.background })
	cs.mu.Lock()
	all = append(all, cs.background...)
	cs.mu.Unlock()
	items := newItems[*wire.Process](c.out)
	for _, p := range all {
		if err := items.add(cs.describe(p), 256+2*len(p.display)); err != nil {
			return failure(err)
		}
	}
	return reply(items.flush())
}

func (c *call) wait(ctx context.Context) *wire.Response {
	cs := c.session.server.cmds
	p, err := cs.find(c.req.ID)
	if err != nil {
		return failure(err)
	}
	select {
	case <-p.bg.settled:
	case <-ctx.Done():
		return failure(context.Cause(ctx))
	}
	r := *p.bg.result
	r.CutStdout, r.CutStderr, err = c.sendRing(p)
	if err != nil {
		return failure(err)
	}
	return &wire.Response{Result: &r}
}

func (c *call) output() *wire.Response {
	p, err := c.session.server.cmds.find(c.req.ID)
	if err != nil {
		return failure(err)
	}
	cutOut, cutErr, err := c.sendRing(p)
	if err != nil {
		return failure(err)
	}
	return &wire.Response{Truncated: cutOut || cutErr}
}

// follow sends a process's output as it comes. What the ring drops before the
// client has read what came before it is skipped.
func (c *call) follow(ctx context.Context) *wire.Response {
	p, err := c.session.server.cmds.find(c.req.ID)
	if err != nil {
		return failure(err)
	}
	f := &follower{ring: p.bg.ring}
	settled, end := p.bg.settled, int64(math.MaxInt64)
	buf := make([]byte, bufferOutput)
	for ctx.Err() == nil {
		s, data, more := f.next(buf, end)
		c.out.Raw(wire.OutputType(s), data)
		if data == nil || c.out.Buffered() > bufferOutput {
			if err := c.out.Flush(); err != nil {
				return failure(err)
			}
		}
		switch {
		case data != nil:
		case settled == nil:
			r := *p.bg.result
			r.CutStdout, r.CutStderr = f.cut[0], f.cut[1]
			return &wire.Response{Result: &r}
		default:
			select {
			case <-more:
			case <-settled:
				// What something that it left behind prints from here on is none of
				// its output.
				settled, end = nil, p.bg.ring.end()
			case <-ctx.Done():
			}
		}
	}
	return failure(context.Cause(ctx))
}

func (c *call) sendRing(p *command) (cutOut, cutErr bool, err error) {
	out, cutOut := p.bg.ring.content(provider.Stdout)
	errOut, cutErr := p.bg.ring.content(provider.Stderr)
	for _, part := range []struct {
		t    wire.Type
		data []byte
	}{{wire.TypeStdout, out}, {wire.TypeStderr, errOut}} {
		for len(part.data) > 0 {
			n := min(len(part.data), wire.MaxData)
			c.out.Frame(part.t, part.data[:n])
			part.data = part.data[n:]
			if c.out.Buffered() > bufferOutput {
				if err := c.out.Flush(); err != nil {
					return false, false, err
				}
			}
		}
	}
	return cutOut, cutErr, nil
}

// signal sends a signal to a background process's group; KILL ends its whole
// tree, also what a process that has ended left behind.
func (c *call) signal() *wire.Response {
	cs := c.session.server.cmds
	p, err := cs.find(c.req.ID)
	if err != nil {
		return failure(err)
	}
	sig, err := parseSignal(c.req.Signal)
	if err != nil {
		return failure(err)
	}
	if sig == unix.SIGKILL {
		if err := cs.killTrees(p); err != nil {
			return unended(err)
		}
		return &wire.Response{}
	}
	// The lock keeps the process id from being collected and used anew.
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.running[p.pid] != p {
		return failure(&provider.Error{Kind: provider.ErrGone, Err: fmt.Errorf("process %s has ended", p.id)})
	}
	return reply(syscall.Kill(-p.pid, sig))
}

// parseSignal accepts "TERM", "SIGTERM" and "15".
func parseSignal(s string) (syscall.Signal, error) {
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	if n, err := strconv.Atoi(s); err == nil && n > 0 && n <= 64 {
		return syscall.Signal(n), nil
	}
	return 0, &provider.InvalidError{Field: "signal", Value: s, Reason: `must be a signal's name or number, such as "TERM" or 15`}
}

// feed writes to a background process's input and returns when the pipe has
// taken it.
func (c *call) feed(ctx context.Context) error {
	p, err := c.session.server.cmds.find(c.req.ID)
	if err != nil {
		return err
	}
	select {
	case p.feeding <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-p.feeding }()
	stop := context.AfterFunc(ctx, func() { p.stdin.SetWriteDeadline(past) })
	defer func() {
		if !stop() {
			p.stdin.SetWriteDeadline(time.Time{})
		}
	}()
	_, err = io.Copy(p.stdin, c.input(ctx))
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, os.ErrClosed) {
		return &provider.Error{Kind: provider.ErrGone, Err: fmt.Errorf("the input of process %s is closed", p.id)}
	}
	return err
}

func (c *call) closeInput() error {
	p, err := c.session.server.cmds.find(c.req.ID)
	if err != nil {
		return err
	}
	p.stdin.Close() // a second time is fine
	return nil
}

// kill ends the running commands with one of the tags.
func (c *call) kill() *wire.Response {
	cs := c.session.server.cmds
	tags := make(map[string]bool, len(c.req.Tags))
	for _, tag := range c.req.Tags {
		tags[tag] = true
	}
	targets := cs.list(func(c *command) bool { return c.tag != "" && tags[c.tag] })
	if err := cs.killTrees(targets...); err != nil {
		return unended(err)
	}
	return &wire.Response{Count: len(targets)}
}

// killAll ends every process of the sandbox.
func (c *call) killAll() *wire.Response {
	cs := c.session.server.cmds
	n := len(cs.list(func(*command) bool { return true }))
	if err := cs.killEverything(); err != nil {
		return unended(err)
	}
	return &wire.Response{Count: n}
}

// keptOutput bounds the memory for the output of ended processes, which counts
// against the sandbox's own limit.
type keptOutput struct {
	mu    sync.Mutex
	rings []*ring // oldest first
	limit int64
}

func newKeptOutput() *keptOutput {
	limit := int64(32 << 20)
	if m := memoryLimit(); m > 0 {
		limit = min(limit, m/8)
	}
	return &keptOutput{limit: limit}
}

// ended enters the output of a process that has ended and drops the oldest
// output beyond the limit.
func (k *keptOutput) ended(r *ring) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rings = append(k.rings, r)
	total := int64(0)
	for i := len(k.rings) - 1; i >= 0; i-- {
		if total += k.rings[i].size(); total > k.limit && i < len(k.rings)-1 {
			for _, old := range k.rings[:i+1] {
				old.drop()
			}
			k.rings = append([]*ring(nil), k.rings[i+1:]...)
			return
		}
	}
}

func (k *keptOutput) forget(r *ring) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i := range k.rings {
		if k.rings[i] == r {
			k.rings = append(k.rings[:i], k.rings[i+1:]...)
			return
		}
	}
}
