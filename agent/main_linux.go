package agent

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/capybara-hq/capyrun/agent/internal/server"
	"github.com/capybara-hq/capyrun/provider"
)

// run is "capyrun agent ARGS". The flags are set by the functions of agent.go
// and by tests, not by people.
func run(args []string) int {
	if len(args) == 0 {
		return usage()
	}
	flags := flag.NewFlagSet("capyrun agent "+args[0], flag.ContinueOnError)
	var places placeFlag
	flags.Var(&places, "place", "NAME=DIR, a directory in which files may be changed")
	socket := flags.String("socket", server.DefaultSocket, "where the first process takes sessions")
	var err error
	code := 0
	switch args[0] {
	case "init":
		var cfg server.InitConfig
		flags.DurationVar(&cfg.Grace, "grace", 0, "how long to live without a session")
		flags.BoolVar(&cfg.Keep, "keep", false, "live without a session")
		expires := flags.Int64("expires", 0, "when to end, in Unix milliseconds")
		client := flags.Uint("client-uid", 0, "user id whose processes may open sessions")
		if flags.Parse(args[1:]) != nil {
			return 2
		}
		if *expires != 0 {
			cfg.Expires = time.UnixMilli(*expires)
		}
		cfg.Socket, cfg.ClientID, cfg.Places = *socket, uint32(*client), places
		if len(cfg.Places) == 0 {
			cfg.Places = []server.Place{{Name: provider.Workspace, Dir: provider.Workspace}, {Name: provider.TempDir, Dir: provider.TempDir}}
		}
		code, err = server.Init(cfg)
	case "connect":
		first := flags.Int("first-pid", 1, "process id that must answer; 0 for any")
		if flags.Parse(args[1:]) != nil {
			return 2
		}
		err = server.Connect(*socket, int32(*first))
	case "files":
		if flags.Parse(args[1:]) != nil {
			return 2
		}
		err = server.NewFiles(places).ServeStdio()
	default:
		return usage()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "capyrun agent:", err)
		if code == 0 {
			code = 1
		}
	}
	return code
}

func usage() int {
	fmt.Fprintln(os.Stderr, "capyrun agent: runs inside a sandbox only, as init, connect or files")
	return 2
}

// placeFlag collects NAME=DIR.
type placeFlag []server.Place

func (p *placeFlag) String() string { return "" }

func (p *placeFlag) Set(s string) error {
	name, dir, ok := strings.Cut(s, "=")
	if !ok || !strings.HasPrefix(name, "/") || !strings.HasPrefix(dir, "/") {
		return fmt.Errorf("must be NAME=DIR with absolute paths")
	}
	*p = append(*p, server.Place{Name: name, Dir: dir})
	return nil
}
