//go:build !linux

package agent

import (
	"fmt"
	"os"
)

func run([]string) int {
	fmt.Fprintln(os.Stderr, "capyrun agent: runs inside a sandbox only, on Linux")
	return 2
}
