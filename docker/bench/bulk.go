package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const (
	bulkSize  = int64(256 << 20)
	bulkFiles = 64
	// bulkMemory is how much memory the runner may have had.
	bulkMemory = 64 << 20
)

// bulkRows compare transfers with `docker cp`. Ours happen in a process of their
// own, so that its peak of memory can be told.
func (b *bench) bulkRows() []row {
	tree := func() (string, error) { return b.bulkData("tree", bulkFiles) }
	one := func() (string, error) { return b.bulkData("one", 1) }
	return []row{
		b.transfer("upload a directory of 256 MiB in 64 files, against `docker cp`", tree, true),
		b.transfer("download it", tree, false),
		b.transfer("upload a file of 256 MiB, against `docker cp`", one, true),
		b.transfer("download it", one, false),
		{"a command that prints 1 GiB, of which 1 MiB is kept, against `docker exec`", b.output},
	}
}

// output is a row about a command whose output is dropped for the most part.
func (b *bench) output() (string, error) {
	const command = "head -c 1073741824 /dev/zero"
	w, err := startWorker(b)
	if err != nil {
		return "", err
	}
	defer w.stop()
	var peak int64
	p := pair{
		target: 2, rounds: max(3, b.rounds/20), // half the rate
		ours: func(int) error {
			kib, err := w.do("output", command)
			peak = max(peak, kib<<10)
			return err
		},
		theirs: func(int) error { return exec.Command("docker", "exec", w.sandbox, "bash", "-c", command).Run() },
	}
	ours, theirs, err := b.inTurn(p)
	if err != nil {
		return "", err
	}
	return compared(ours, theirs, p.target) + peakText(peak), nil
}

// peakText adds the peak of a runner's memory to a row.
func peakText(peak int64) string {
	return fmt.Sprintf("; runner's peak %.0f MiB of 64, %s", float64(peak)/(1<<20), verdict(peak < bulkMemory))
}

// bulkData makes a file, or a directory of several, that no compression makes
// smaller.
func (b *bench) bulkData(name string, files int) (string, error) {
	dir := filepath.Join(os.TempDir(), fmt.Sprintf("capyrun-bench-%d", os.Getpid()))
	data := filepath.Join(dir, name)
	if _, err := os.Stat(data); err == nil {
		return data, nil
	}
	b.atEnd(func() { os.RemoveAll(dir) })
	if files == 1 {
		return data, errors.Join(os.MkdirAll(dir, 0o755), noise(data, bulkSize))
	}
	if err := os.MkdirAll(data, 0o755); err != nil {
		return "", err
	}
	for i := range files {
		if err := noise(filepath.Join(data, fmt.Sprint(i)), bulkSize/int64(files)); err != nil {
			return "", err
		}
	}
	return data, nil
}

func noise(file string, size int64) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, rand.Reader, size)
	return errors.Join(err, f.Close())
}

// transfer is a row about one direction. Memory counts too.
func (b *bench) transfer(what string, data func() (string, error), up bool) row {
	return row{what, func() (string, error) {
		host, err := data()
		if err != nil {
			return "", err
		}
		w, err := startWorker(b)
		if err != nil {
			return "", err
		}
		defer w.stop()
		var peak int64
		do := func(args ...string) error {
			kib, err := w.do(args...)
			peak = max(peak, kib<<10)
			return err
		}
		cp := func(args ...string) error {
			out, err := exec.Command("docker", append([]string{"cp"}, args...)...).CombinedOutput()
			if err != nil {
				return fmt.Errorf("docker cp: %w: %s", err, strings.TrimSpace(string(out)))
			}
			return nil
		}
		p := pair{target: 1, rounds: max(3, b.rounds/12)}
		// Docker's files belong to root there, but they can be removed by the owner
		// of their directory.
		const inside = "/workspace/bulk/new"
		here := filepath.Join(filepath.Dir(host), "back")
		if up {
			clean := func() { do("remove", inside) }
			p.ours = func(int) error { b.later(clean); return do("upload", host, inside) }
			p.theirs = func(int) error {
				b.later(clean)
				if fi, err := os.Stat(host); err != nil || !fi.IsDir() {
					return errors.Join(err, cp(host, w.sandbox+":"+inside))
				}
				// What docker cp makes belongs to root there, and the sandbox can
				// remove it only from a directory of its own.
				return errors.Join(do("mkdir", inside), cp(host+"/.", w.sandbox+":"+inside))
			}
		} else {
			if err := do("upload", host, inside); err != nil {
				return "", err
			}
			clean := func() { os.RemoveAll(here) }
			p.ours = func(int) error { b.later(clean); return do("download", inside, here) }
			p.theirs = func(int) error { b.later(clean); return cp(w.sandbox+":"+inside, here) }
		}
		peak = 0
		ours, theirs, err := b.inTurn(p)
		if err != nil {
			return "", err
		}
		return compared(ours, theirs, p.target) + peakText(peak), nil
	}}
}
