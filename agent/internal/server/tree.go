//go:build linux

package server

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// killBound is how long dying processes are awaited. The kernel ends a process
// within a millisecond unless it sleeps where nothing can wake it.
const killBound = 10 * time.Second

// userHZ is the unit of start times in proc_pid_stat(5); it is 100 on every
// architecture that Go supports.
const userHZ = 100

// bootTicks is the present time as the kernel notes it for a process that
// starts now.
func bootTicks() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // every process counts as started later
	}
	return uint64(ts.Nano()) / (uint64(time.Second) / userHZ)
}

// process is one entry of /proc.
type process struct {
	pid, parent, session int
	state                byte
	start                uint64 // in units of userHZ since boot
}

func (p *process) dead() bool { return p.state == 'Z' || p.state == 'X' }

// processes lists what exists in the sandbox, but for this process.
func processes() ([]process, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	self := os.Getpid()
	list := make([]process, 0, len(names))
	buf := make([]byte, 1024)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid == self {
			continue
		}
		stat := readFile("/proc/"+name+"/stat", buf)
		if p, ok := parseStat(stat); ok {
			p.pid = pid
			list = append(list, p)
		}
	}
	return list, nil
}

// readFile fills buf with the start of a file; it is empty where that fails.
func readFile(name string, buf []byte) []byte {
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	defer syscall.Close(fd)
	total := 0
	for total < len(buf) {
		n, err := syscall.Read(fd, buf[total:])
		if err == syscall.EINTR {
			continue
		}
		if err != nil || n <= 0 {
			break
		}
		total += n
	}
	return buf[:total]
}

// parseStat reads proc_pid_stat(5). The command's name may hold anything, so
// the fields are counted from the last parenthesis.
func parseStat(stat []byte) (process, bool) {
	var p process
	f := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(f) < 20 || len(f[0]) != 1 {
		return p, false
	}
	p.state = f[0][0]
	var err [3]error
	p.parent, err[0] = strconv.Atoi(string(f[1]))
	p.session, err[1] = strconv.Atoi(string(f[3]))
	p.start, err[2] = strconv.ParseUint(string(f[19]), 10, 64)
	return p, err == [3]error{}
}

// mark returns the command id in a process's environment: empty where it has
// none, ok false where the environment cannot be read.
func mark(pid int, buf []byte) (id string, ok bool) {
	env := readFile(fmt.Sprintf("/proc/%d/environ", pid), buf)
	if len(env) == 0 {
		return "", false
	}
	const prefix = markName + "="
	if !bytes.HasPrefix(env, []byte(prefix)) {
		i := bytes.Index(env, []byte("\x00"+prefix))
		if i < 0 {
			return "", true
		}
		env = env[i+1:]
	}
	value, _, _ := bytes.Cut(env[len(prefix):], []byte{0})
	return string(value), true
}

// tree finds the processes that belong to some commands.
type tree struct {
	cs      *commands
	targets map[*command]bool
	others  map[*command]bool // that have run beside them
	members map[int]uint64    // start times by process id
	reused  map[int]bool      // numbers of ended targets that new processes have
	checked map[int]checkedMark
	buf     []byte
}

func (cs *commands) newTree(targets ...*command) *tree {
	t := &tree{
		cs: cs, targets: map[*command]bool{}, others: map[*command]bool{},
		members: map[int]uint64{}, checked: map[int]checkedMark{}, buf: make([]byte, 128<<10),
	}
	for _, c := range targets {
		t.targets[c] = true
	}
	return t
}

// signal sends sig to what lives of the tree and returns to how many processes.
// With fresh set only those get it that were not known to belong to it.
//
// No command is started meanwhile. A process that this one is about to make a
// command of has no mark yet, and looks like an orphan; and to stop it in
// between would stop this process too, which waits for it.
func (t *tree) signal(sig syscall.Signal, fresh bool) (int, error) {
	t.cs.mu.Lock()
	defer t.cs.mu.Unlock()
	for _, c := range t.cs.running {
		if !t.targets[c] {
			t.others[c] = true
		}
	}
	list, err := processes()
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	chosen := t.grow(list)
	if !fresh {
		chosen = chosen[:0]
		for _, p := range list {
			if start, member := t.members[p.pid]; member && start == p.start && !p.dead() {
				chosen = append(chosen, p)
			}
		}
	}
	n := 0
	for _, p := range chosen {
		if syscall.Kill(p.pid, sig) == nil {
			n++
		}
	}
	return n, nil
}

// checkedMark remembers a process's mark, which costs a read of its memory. It
// holds for as long as the process does not execute another program, so it is
// used within one kill only, where the members are stopped.
type checkedMark struct {
	start uint64
	id    string
	ok    bool
}

// grow adds the processes of list that belong to the tree and returns the new
// ones that live.
func (t *tree) grow(list []process) []process {
	t.reused = map[int]bool{}
	for c := range t.targets {
		for _, p := range list {
			if p.pid == c.pid && !c.alive() && p.start >= c.began {
				t.reused[c.pid] = true
			}
		}
	}
	var added []process
	for again := true; again; {
		again = false
		for _, p := range list {
			if start, known := t.members[p.pid]; known && start == p.start || !t.belongs(&p) {
				continue
			}
			t.members[p.pid] = p.start
			if !p.dead() {
				added = append(added, p)
			}
			again = true // its children may stand before it in the list
		}
	}
	return added
}

func (t *tree) belongs(p *process) bool {
	if _, child := t.members[p.parent]; child {
		return true
	}
	for c := range t.others {
		if p.session == c.pid {
			return false
		}
	}
	for c := range t.targets {
		// A command's process id is its session's. The kernel does not give the
		// number away while a session has it.
		if p.session == c.pid && p.start >= c.began && !t.reused[c.pid] {
			return true
		}
	}
	if p.dead() {
		return false
	}
	m, known := t.checked[p.pid]
	if !known || m.start != p.start {
		m = checkedMark{start: p.start}
		m.id, m.ok = mark(p.pid, t.buf)
		t.checked[p.pid] = m
	}
	if m.ok && m.id != "" {
		for c := range t.targets {
			if m.id == c.id {
				return true
			}
		}
		return false // another command's
	}
	return t.orphan(p)
}

// orphan reports whether a process that has shed everything that ties it to its
// command must still be one of the tree's: it was handed to this process when
// its parent ended, it is not older than a target, and no other command was
// there to start it.
func (t *tree) orphan(p *process) bool {
	if p.parent != os.Getpid() {
		return false
	}
	for c := range t.others {
		if c.began <= p.start {
			return false
		}
	}
	for c := range t.targets {
		if p.start >= c.began {
			return true
		}
	}
	return false
}

// kill ends the tree and returns when it is dead. Everything is stopped before
// anything is killed: a process that forks faster than it can be found would
// otherwise get away.
func (t *tree) kill(deadline time.Time) error {
	t.signalGroups(syscall.SIGSTOP)
	for {
		n, err := t.signal(syscall.SIGSTOP, true)
		if err != nil {
			return err
		}
		if n == 0 || time.Now().After(deadline) {
			break
		}
	}
	return untilNone(deadline, func() (int, error) { return t.signal(syscall.SIGKILL, false) })
}

// signalGroups signals the process groups of the targets: most of a tree, at
// once. To stop them leaves the processor to the search for the rest.
func (t *tree) signalGroups(sig syscall.Signal) {
	t.cs.mu.Lock()
	defer t.cs.mu.Unlock()
	for c := range t.targets {
		if t.cs.running[c.pid] == c { // else the number may be another's
			syscall.Kill(-c.pid, sig)
		}
	}
}

// untilNone calls kill until it finds nothing more to kill.
func untilNone(deadline time.Time, kill func() (int, error)) error {
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		n, err := kill()
		if n == 0 || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes do not end: they sleep in the kernel", n)
		}
		time.Sleep(pause)
	}
}

// killTrees ends commands with all their descendants and returns when they are
// dead.
func (cs *commands) killTrees(targets ...*command) error {
	if len(targets) == 0 {
		return nil
	}
	deadline := time.Now().Add(killBound)
	for _, c := range targets {
		c.killed.Store(true)
	}
	t := cs.newTree(targets...)
	if err := t.kill(deadline); err != nil {
		t.signalGroups(syscall.SIGKILL) // at least what can be ended unseen
		return err
	}
	for _, c := range targets {
		select {
		case <-c.done:
		case <-time.After(time.Until(deadline)):
			return fmt.Errorf("process %d of %q does not end", c.pid, c.display)
		}
	}
	return nil
}

// killEverything ends every process of the sandbox but this one.
func (cs *commands) killEverything() error {
	deadline := time.Now().Add(killBound)
	for _, c := range cs.list(func(*command) bool { return true }) {
		c.killed.Store(true)
	}
	if os.Getpid() != 1 {
		// Only the first process of a namespace may ask the kernel for all: on a
		// machine, that would be the machine.
		t := cs.newTree()
		t.members[os.Getpid()] = 0 // it is in no list, but all in its tree are
		return t.kill(deadline)
	}
	return untilNone(deadline, func() (int, error) {
		// The kernel does this under the lock that forking takes: no process
		// escapes by forking meanwhile.
		if err := syscall.Kill(-1, syscall.SIGKILL); err == syscall.ESRCH {
			return 0, nil
		}
		list, err := processes()
		n := 0
		for _, p := range list {
			// Signal 0 fails for what is not ours: a session's relay.
			if !p.dead() && syscall.Kill(p.pid, 0) == nil {
				n++
			}
		}
		return n, err
	})
}
