package agent

import (
	"os"
	"sync/atomic"
)

// mainCalled says that this program's binary can serve as the agent.
var mainCalled atomic.Bool

// Main runs the agent where the program was started as one ("PROGRAM agent
// ...") and does not return then. Otherwise it returns at once. A program that
// calls it first in its main or TestMain is its own agent, see [FindBinary].
func Main() {
	mainCalled.Store(true)
	if len(os.Args) > 1 && os.Args[1] == "agent" {
		os.Exit(run(os.Args[2:]))
	}
}
