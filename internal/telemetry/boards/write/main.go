// Command write writes the dashboard and the alert rules into a folder.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvoracle/kvoracle/internal/telemetry/boards"
)

func main() {
	if err := write(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "write:", err)
		os.Exit(1)
	}
}

func write(args []string) error {
	if len(args) != 1 {
		return errors.New("want one folder")
	}
	dashboard, err := boards.Dashboard()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{boards.DashboardFile: dashboard, boards.RulesFile: boards.Rules()} {
		if err := os.WriteFile(filepath.Join(args[0], name), text, 0o644); err != nil { //nolint:gosec // for everybody
			return err
		}
	}
	return nil
}
