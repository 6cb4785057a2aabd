package agent

import "time"

// SetPatience shortens how long an agent may take, for a test that waits for
// it. It returns what undoes that.
func SetPatience(d time.Duration) (undo func()) {
	old := patience
	patience = d
	return func() { patience = old }
}
