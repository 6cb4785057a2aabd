package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// buildVersion is what the version command tells.
type buildVersion struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Modified bool   `json:"modified,omitempty"` // built from a work tree with changes
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func readVersion() buildVersion {
	v := buildVersion{Version: "devel", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (p *program) versionCommand() *cli.Command {
	return &cli.Command{
		Name:        "version",
		Usage:       "tell the version",
		Description: "Example: capyrun version --json",
		ArgsUsage:   " ",
		Flags:       []cli.Flag{jsonFlag},
		Action: func(c *cli.Context) error {
			if err := p.noArgs(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return p.stdout.json(readVersion())
			}
			p.writeVersion()
			return nil
		},
	}
}

func (p *program) writeVersion() {
	v := readVersion()
	fmt.Fprintf(p.stdout, "capyrun %s, %s, %s\n", v.Version, v.Go, v.Platform)
}
