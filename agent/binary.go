package agent

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
)

// FindBinary returns the path of an agent binary for the given platform, in Go's
// terms: the configured one; else this very program, where it has called [Main];
// else a capyrun on PATH. It checks that the binary runs in any image: an ELF
// file for that machine without a dynamic loader.
func FindBinary(configured, goos, goarch string) (string, error) {
	if goos != "linux" {
		return "", fmt.Errorf("the agent runs on linux, not on %s", goos)
	}
	if configured != "" {
		if err := checkBinary(configured, goarch); err != nil {
			return "", fmt.Errorf("agent binary %s: %w", configured, err)
		}
		return configured, nil
	}
	const ways = "set docker.Config.AgentBinary (agent_binary), or call agent.Main() first in the program's own main or TestMain, or put a capyrun on PATH"
	var tried []error
	if mainCalled.Load() {
		self, err := os.Executable()
		if err == nil {
			err = checkBinary(self, goarch)
		}
		if err == nil {
			return self, nil
		}
		tried = append(tried, fmt.Errorf("this program cannot be it: %w", err))
	}
	onPath, err := exec.LookPath("capyrun")
	if err == nil {
		if err = checkBinary(onPath, goarch); err == nil {
			return onPath, nil
		}
		tried = append(tried, fmt.Errorf("%s cannot be it: %w", onPath, err))
	}
	if len(tried) > 0 {
		return "", fmt.Errorf("no agent binary for linux/%s: %w: %s", goarch, errors.Join(tried...), ways)
	}
	return "", fmt.Errorf("no agent binary for linux/%s: %s", goarch, ways)
}

var machines = map[string]elf.Machine{
	"386": elf.EM_386, "amd64": elf.EM_X86_64, "arm": elf.EM_ARM, "arm64": elf.EM_AARCH64, "loong64": elf.EM_LOONGARCH,
	"ppc64le": elf.EM_PPC64, "riscv64": elf.EM_RISCV, "s390x": elf.EM_S390,
}

func checkBinary(path, goarch string) error {
	want, known := machines[goarch]
	if !known {
		return fmt.Errorf("unknown machine %q", goarch)
	}
	fi, err := os.Stat(path)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			return e.Err
		}
		return err
	}
	if !fi.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	f, err := elf.Open(path)
	if err != nil {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			return e.Err
		}
		return fmt.Errorf("not an ELF program: %w", err)
	}
	defer f.Close()
	if f.Machine != want {
		return fmt.Errorf("it is for %v, the engine runs %s", f.Machine, goarch)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is dynamically linked, and an image need not have its loader: build it with CGO_ENABLED=0")
		}
	}
	return nil
}
