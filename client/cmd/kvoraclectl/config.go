package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"
)

// config is a file of flags. A flag on the command line wins over the environment, which wins over the file.
type config map[string]any

var _ kong.Resolver = config(nil)

// readConfig reads a file: "server: host:port" at the top, a command's own flags in a map under its name.
func readConfig(r io.Reader) (kong.Resolver, error) {
	var c map[string]any
	if err := yaml.NewDecoder(r).Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("config: %w", err)
	}
	return config(c), nil
}

// Validate implements kong.Resolver: a key that names nothing is a mistake.
func (c config) Validate(app *kong.Application) error {
	commands := map[string]*kong.Node{}
	for _, n := range app.Children {
		commands[n.Name] = n
	}
	for key, v := range c {
		node, isCommand := commands[key]
		inner, isMap := v.(map[string]any)
		switch {
		case isCommand && isMap:
			for k := range inner {
				if !has(node.Flags, k) {
					return fmt.Errorf("config: %s has no flag %q", key, k)
				}
			}
		case isCommand || !has(app.Flags, key):
			return fmt.Errorf("config: %q is no flag, nor a command with flags under it", key)
		}
	}
	return nil
}

func has(flags []*kong.Flag, name string) bool {
	for _, f := range flags {
		if f.Name == name {
			return true
		}
	}
	return false
}

// Resolve implements kong.Resolver.
func (c config) Resolve(_ *kong.Context, parent *kong.Path, flag *kong.Flag) (any, error) {
	if flag.Name == "config" {
		return nil, nil //nolint:nilnil // kong's word for "not here"
	}
	for _, env := range flag.Envs {
		if _, ok := os.LookupEnv(env); ok {
			return nil, nil //nolint:nilnil // the same
		}
	}
	from := c
	if parent.Command != nil {
		inner, ok := c[parent.Command.Name].(map[string]any)
		if !ok {
			return nil, nil //nolint:nilnil // the same
		}
		from = inner
	}
	v, ok := from[flag.Name]
	if list, isList := v.([]any); ok && isList {
		parts := make([]string, len(list))
		for i, p := range list {
			parts[i] = fmt.Sprint(p)
		}
		return strings.Join(parts, ","), nil
	}
	return v, nil
}
