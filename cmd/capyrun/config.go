package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/urfave/cli/v2"

	"github.com/capybara-hq/capyrun/agent"
	"github.com/capybara-hq/capyrun/docker"
)

// settings is what the file, the environment and the global flags say.
type settings struct {
	docker   docker.Config
	logLevel string
	color    string
	progress string
}

// A key is one setting. It is written here once and can be given in three ways:
// as name in the file, CAPYRUN_NAME in the environment and --name, with dashes,
// on the command line; the later overrides the earlier.
type key struct {
	name  string
	usage string
	value func(*settings) any // *string, *bool, *map[string]string or *docker.Pull
	words []string            // the values that are accepted; nil: any
}

var keys = []key{
	{name: "endpoint", usage: "the Docker Engine: `unix:///path` or tcp://host:port (default: DOCKER_HOST, else " + docker.DefaultEndpoint + ")",
		value: func(s *settings) any { return &s.docker.Endpoint }},
	{name: "runtime", usage: "OCI runtime `NAME` as the engine knows it, such as runsc for gVisor (default: " + docker.DefaultRuntime + ")",
		value: func(s *settings) any { return &s.docker.Runtime }},
	{name: "network", usage: "`PREFIX` of the names of shared networks (default: " + docker.DefaultNetwork + ")",
		value: func(s *settings) any { return &s.docker.Network }},
	{name: "image", usage: "image `REF` of a sandbox that names none (default: " + docker.DefaultImage + ")",
		value: func(s *settings) any { return &s.docker.Image }},
	{name: "pull", usage: "`WHEN` to pull images: missing, always or never (default: missing)",
		value: func(s *settings) any { return &s.docker.Pull },
		words: []string{string(docker.PullMissing), string(docker.PullAlways), string(docker.PullNever)}},
	{name: "volume_driver", usage: "volume driver `NAME` that takes a size, so that the disk limit holds (default: local, which does not)",
		value: func(s *settings) any { return &s.docker.VolumeDriver }},
	{name: "allow_open_egress", usage: "permit egress=\"open\": such a sandbox reaches this host's services, the LAN and cloud metadata",
		value: func(s *settings) any { return &s.docker.AllowOpenEgress }},
	{name: "labels", usage: "label `KEY=VALUE` on everything that is created; may be repeated",
		value: func(s *settings) any { return &s.docker.Labels }},
	{name: "agent_binary", usage: "`PATH` of a static capyrun for the engine's platform (default: this program)",
		value: func(s *settings) any { return &s.docker.AgentBinary }},
	{name: "log_level", usage: "least `LEVEL` that is logged: info, warning or error (default: info)",
		value: func(s *settings) any { return &s.logLevel }, words: []string{"info", "warning", "error"}},
	{name: "color", usage: "`WHEN` to use colours on stderr: auto, always or never (default: auto, which respects NO_COLOR)",
		value: func(s *settings) any { return &s.color }, words: []string{"auto", "always", "never"}},
	{name: "progress", usage: "`MODE` of the progress display: auto, tty, plain or none (default: auto)",
		value: func(s *settings) any { return &s.progress }, words: []string{"auto", "tty", "plain", "none"}},
}

const envPrefix = "CAPYRUN_"

func (k key) flag() string { return strings.ReplaceAll(k.name, "_", "-") }
func (k key) env() string  { return envPrefix + strings.ToUpper(k.name) }

// globalFlags makes the flags of the keys, and --config.
func globalFlags() []cli.Flag {
	flags := []cli.Flag{&cli.StringFlag{
		Name:  "config",
		Usage: "configuration `FILE` (default: CAPYRUN_CONFIG, ./capyrun.toml, then " + filepath.Join("$XDG_CONFIG_HOME", "capyrun", "config.toml") + ")",
	}}
	for _, k := range keys {
		switch k.value(new(settings)).(type) {
		case *bool:
			flags = append(flags, &cli.BoolFlag{Name: k.flag(), Usage: k.usage})
		case *map[string]string:
			flags = append(flags, &cli.StringSliceFlag{Name: k.flag(), Usage: k.usage})
		default:
			flags = append(flags, &cli.StringFlag{Name: k.flag(), Usage: k.usage})
		}
	}
	return flags
}

// A configError is a setting that cannot be accepted, with where it stands.
type configError struct {
	where string
	err   error
}

func (e *configError) Error() string { return e.where + ": " + e.err.Error() }
func (e *configError) Unwrap() error { return e.err }

// loadSettings reads the file, then the environment, then the flags.
func loadSettings(c *cli.Context, environ []string) (*settings, error) {
	s := &settings{logLevel: "info", color: "auto", progress: "auto"}
	env, err := ownEnv(environ)
	if err != nil {
		return nil, err
	}
	path, err := configPath(c.String("config"), env["CONFIG"])
	if err != nil {
		return nil, err
	}
	if path != "" {
		if err := s.readFile(path); err != nil {
			return nil, &configError{path, err}
		}
	}
	for _, k := range keys {
		if text, ok := env[strings.ToUpper(k.name)]; ok {
			values := []string{text}
			if _, isMap := k.value(s).(*map[string]string); isMap {
				values = strings.FieldsFunc(text, func(r rune) bool { return r == ',' })
			}
			if err := k.set(s, values); err != nil {
				return nil, &configError{k.env(), err}
			}
		}
	}
	for _, k := range keys {
		if !c.IsSet(k.flag()) {
			continue
		}
		var values []string
		switch k.value(s).(type) {
		case *bool:
			values = []string{strconv.FormatBool(c.Bool(k.flag()))}
		case *map[string]string:
			values = c.StringSlice(k.flag())
		default:
			values = []string{c.String(k.flag())}
		}
		if err := k.set(s, values); err != nil {
			return nil, &configError{"--" + k.flag(), err}
		}
	}
	return s, nil
}

// ownEnv returns the CAPYRUN_ variables without their prefix.
func ownEnv(environ []string) (map[string]string, error) {
	known := []string{"CONFIG"}
	for _, k := range keys {
		known = append(known, strings.ToUpper(k.name))
	}
	env := map[string]string{}
	for _, pair := range environ {
		name, value, _ := strings.Cut(pair, "=")
		short, ours := strings.CutPrefix(name, envPrefix)
		if !ours || name == agent.MarkVariable { // the latter inside a sandbox
			continue
		}
		if !slices.Contains(known, short) {
			return nil, &configError{name, fmt.Errorf("no such variable%s", didYouMean(envPrefix, short, known))}
		}
		if value != "" { // an empty variable is one that is not set
			env[short] = value
		}
	}
	return env, nil
}

// configPath returns the file to read, or nothing. A file that was named must
// exist; the usual places need not hold one.
func configPath(flag, env string) (string, error) {
	for _, named := range []struct{ where, path string }{{"--config", flag}, {envPrefix + "CONFIG", env}} {
		if named.path == "" {
			continue
		}
		if _, err := os.Stat(named.path); err != nil {
			return "", &configError{named.where, err}
		}
		return named.path, nil
	}
	usual := []string{"capyrun.toml"}
	if dir, err := os.UserConfigDir(); err == nil {
		usual = append(usual, filepath.Join(dir, "capyrun", "config.toml"))
	}
	for _, path := range usual {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", &configError{path, err}
		}
	}
	return "", nil
}

// readFile takes the settings of a TOML file.
func (s *settings) readFile(path string) error {
	var file map[string]any
	if _, err := toml.DecodeFile(path, &file); err != nil {
		var parse toml.ParseError
		if errors.As(err, &parse) {
			return fmt.Errorf("line %d: %s", parse.Position.Line, parse.Message)
		}
		return err
	}
	known := make([]string, len(keys))
	for i, k := range keys {
		known[i] = k.name
	}
	for _, name := range slices.Sorted(maps.Keys(file)) {
		i := slices.Index(known, name)
		if i < 0 {
			return fmt.Errorf("unknown key %q%s", name, didYouMean("", name, known))
		}
		if err := keys[i].setTOML(s, file[name]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// setTOML sets the key from a value of the file, which has a type already.
func (k key) setTOML(s *settings, value any) error {
	switch k.value(s).(type) {
	case *bool:
		if v, ok := value.(bool); ok {
			return k.set(s, []string{strconv.FormatBool(v)})
		}
		return fmt.Errorf("want true or false, got %v", value)
	case *map[string]string:
		table, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("want a table of strings, got %v", value)
		}
		var pairs []string
		for name, v := range table {
			text, ok := v.(string)
			if !ok {
				return fmt.Errorf("%s: want a string, got %v", name, v)
			}
			pairs = append(pairs, name+"="+text)
		}
		return k.set(s, pairs)
	}
	if v, ok := value.(string); ok {
		return k.set(s, []string{v})
	}
	return fmt.Errorf("want a string, got %v", value)
}

// set sets the key from text, of which only labels may have more than one.
func (k key) set(s *settings, values []string) error {
	if k.words != nil && !slices.Contains(k.words, values[0]) {
		last := len(k.words) - 1
		return fmt.Errorf("%q: must be %s or %s%s", values[0], strings.Join(k.words[:last], ", "), k.words[last], didYouMean("", values[0], k.words))
	}
	switch p := k.value(s).(type) {
	case *string:
		*p = values[0]
	case *docker.Pull:
		*p = docker.Pull(values[0])
	case *bool:
		v, err := strconv.ParseBool(values[0])
		if err != nil {
			return fmt.Errorf("%q: must be true or false", values[0])
		}
		*p = v
	case *map[string]string:
		*p = map[string]string{}
		for _, pair := range values {
			name, value, ok := strings.Cut(pair, "=")
			if !ok || name == "" {
				return fmt.Errorf("%q: must be KEY=VALUE", pair)
			}
			(*p)[name] = value
		}
	default:
		panic(fmt.Sprintf("key %s: unknown type %T", k.name, p))
	}
	return nil
}
