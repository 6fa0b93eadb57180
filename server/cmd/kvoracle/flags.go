package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kvoracle/kvoracle/server"
)

// settings is all that can be set: the server's configuration and what concerns the program alone.
type settings struct {
	server.Config

	configFile  string
	logLevel    slog.Level
	logFormat   string
	hint        bool
	showVersion bool
}

// lookup finds an environment variable; os.LookupEnv.
type lookup func(name string) (string, bool)

const (
	envPrefix = "KVORACLE_"
	// Flags that make no sense in a file.
	flagConfig  = "config"
	flagVersion = "version"
)

// envName is the environment variable of a flag.
func envName(flagName string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flagName, "-", "_"))
}

// parse reads the settings from all sources. Values of a weaker source are checked even where a stronger one wins, so
// that a mistake does not wait for the day the flag is dropped.
func parse(args []string, env lookup) (*settings, error) {
	s := &settings{Config: server.DefaultConfig(), logFormat: "text"}
	flags := s.flagSet()
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if rest := flags.Args(); len(rest) > 0 {
		return nil, fmt.Errorf("got the argument %q, want flags only", rest[0])
	}
	// Weakest first; flags are read once more at the end.
	if path, ok := env(envName(flagConfig)); ok && s.configFile == "" {
		s.configFile = path
	}
	if s.configFile != "" {
		data, err := os.ReadFile(s.configFile)
		if err != nil {
			return nil, fmt.Errorf("--%s: %w", flagConfig, err)
		}
		if err := fromFile(flags, data); err != nil {
			return nil, fmt.Errorf("%s: %w", s.configFile, err)
		}
	}
	if err := fromEnv(flags, env); err != nil {
		return nil, err
	}
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if err := s.validate(); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *settings) validate() error {
	if s.logFormat != "text" && s.logFormat != "json" {
		return fmt.Errorf("--log-format: got %q, want text or json", s.logFormat)
	}
	return s.Validate()
}

// flagSet binds every setting to a flag of the standard library.
func (s *settings) flagSet() *flag.FlagSet {
	f := flag.NewFlagSet("kvoracle", flag.ContinueOnError)
	f.SetOutput(io.Discard) // errors come back as values, help is ours
	for _, group := range s.groups() {
		for _, x := range group.settings {
			x.bind(f, x.name, x.help)
		}
	}
	return f
}

// fromEnv sets what the environment says. Unknown KVORACLE_ variables are not looked for: they may be the client's.
func fromEnv(flags *flag.FlagSet, env lookup) error {
	var errs []error
	flags.VisitAll(func(f *flag.Flag) {
		if v, ok := env(envName(f.Name)); ok && f.Name != flagVersion && f.Name != flagConfig {
			if err := flags.Set(f.Name, v); err != nil {
				errs = append(errs, fmt.Errorf("%s: got %q, %w", envName(f.Name), v, err))
			}
		}
	})
	return errors.Join(errs...)
}

// fromFile sets what a YAML file says: one flat mapping from flag names to values. A key that is no setting, or comes
// twice, is refused.
func fromFile(flags *flag.FlagSet, data []byte) error {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil
	} else if err != nil {
		return err
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return errors.New("want one YAML document")
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil
	}
	if root.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: want a mapping from settings to values", root.Line)
	}
	var errs []error
	seen := make(map[string]bool)
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		name := key.Value
		switch {
		case flags.Lookup(name) == nil || name == flagConfig || name == flagVersion:
			errs = append(errs, fmt.Errorf("line %d: %q is no setting", key.Line, name))
		case seen[name]:
			errs = append(errs, fmt.Errorf("line %d: %q comes twice", key.Line, name))
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			errs = append(errs, fmt.Errorf("line %d: %s: want one value", value.Line, name))
		default:
			if err := flags.Set(name, value.Value); err != nil {
				errs = append(errs, fmt.Errorf("line %d: %s: got %q, %w", value.Line, name, value.Value, err))
			}
		}
		seen[name] = true
	}
	return errors.Join(errs...)
}

// logger writes lines as the settings say, and the level that may change.
func (s *settings) logger(w io.Writer, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if s.logFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}
