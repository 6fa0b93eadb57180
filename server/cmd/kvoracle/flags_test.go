package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kvoracle/kvoracle/server"
)

// environ is an environment made of a map.
func environ(m map[string]string) lookup {
	return func(name string) (string, bool) { v, ok := m[name]; return v, ok }
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kvoracle.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEachFieldCanBeSet walks the configuration: every field has exactly one setting, and the setting changes that
// field and no other.
func TestEachFieldCanBeSet(t *testing.T) {
	values := map[reflect.Type]string{
		reflect.TypeFor[string](): "127.0.0.9:9", reflect.TypeFor[int](): "77", reflect.TypeFor[bool](): "",
		reflect.TypeFor[float64](): "0.77", reflect.TypeFor[time.Duration](): "77s",
	}
	setBy := make(map[string]string) // field -> flag
	base := &settings{Config: server.DefaultConfig()}
	field := func(s *settings, f reflect.StructField) reflect.Value {
		return reflect.ValueOf(s.Config).FieldByIndex(f.Index)
	}
	for _, g := range base.groups() {
		for _, x := range g.settings {
			for _, f := range reflect.VisibleFields(reflect.TypeFor[server.Config]()) {
				s := &settings{Config: server.DefaultConfig()}
				v := values[f.Type]
				if v == "" { // a bool: the opposite of its default
					v = strconv.FormatBool(!field(s, f).Bool())
				}
				if s.flagSet().Set(x.name, v) != nil || field(s, f).Interface() == field(base, f).Interface() {
					continue
				}
				if other, twice := setBy[f.Name]; twice {
					t.Errorf("%s is set by --%s and --%s", f.Name, other, x.name)
				}
				setBy[f.Name] = x.name
			}
		}
	}
	flagsUsed := make(map[string]string)
	for _, f := range reflect.VisibleFields(reflect.TypeFor[server.Config]()) {
		name := setBy[f.Name]
		if name == "" {
			t.Errorf("no setting changes %s", f.Name)
		}
		if other, twice := flagsUsed[name]; twice {
			t.Errorf("--%s changes %s and %s", name, other, f.Name)
		}
		flagsUsed[name] = f.Name
		if want := strings.ReplaceAll(name, "-", ""); !strings.EqualFold(want, f.Name) {
			t.Errorf("--%s changes %s, want the same name", name, f.Name)
		}
	}
}

func TestStrongerSourcesWin(t *testing.T) {
	path := file(t, "policy: random\nlease: 1s\nmax-workers: 11\nstale-credit: 0.25\n")
	env := environ(map[string]string{"KVORACLE_LEASE": "2s", "KVORACLE_MAX_WORKERS": "22", "KVORACLE_CONFIG": path})
	s, err := parse([]string{"--max-workers=33"}, env)
	if err != nil {
		t.Fatal(err)
	}
	want := server.DefaultConfig()
	want.Policy, want.StaleCredit = "random", 0.25 // the file
	want.Lease = 2 * time.Second                   // the environment over the file
	want.MaxWorkers = 33                           // the flag over both
	if s.Config != want {
		t.Errorf("got  %+v\nwant %+v", s.Config, want)
	}
	if s, err = parse([]string{"--config", file(t, "")}, env); err != nil || s.Policy != "least_time" {
		t.Errorf("the file of the flag must win over that of the environment: %v, %v", s, err)
	}
}

func TestPlainStart(t *testing.T) {
	s, err := parse(nil, environ(nil))
	if err != nil || s.Config != server.DefaultConfig() || s.logFormat != "text" || s.hint || s.showVersion {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestLongerPromptsNeedNoSecondSetting(t *testing.T) {
	if _, err := parse([]string{"--max-prompt-tokens=4000000"}, environ(nil)); err != nil {
		t.Error(err)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		file string
		want []string
	}{
		{"flag", []string{"--polcy=x"}, nil, "", []string{"polcy"}},
		{"flag's value", []string{"--lease=fast"}, nil, "", []string{"lease", "fast"}},
		{"argument", []string{"serve"}, nil, "", []string{"serve"}},
		{"environment's value", nil, map[string]string{"KVORACLE_MAX_WORKERS": "many"}, "", []string{"KVORACLE_MAX_WORKERS", "many"}},
		{"environment under a flag", []string{"--lease=1s"}, map[string]string{"KVORACLE_LEASE": "fast"}, "", []string{"KVORACLE_LEASE"}},
		{"file's key", nil, nil, "policy: random\npolcy: random\n", []string{"line 2", "polcy"}},
		{"file's value", nil, nil, "lease: fast\n", []string{"line 1", "lease", "fast"}},
		{"key twice", nil, nil, "lease: 1s\nlease: 2s\n", []string{"lease"}},
		{"list for a value", nil, nil, "lease: [1s]\n", []string{"line 1", "lease"}},
		{"nothing for a value", nil, nil, "lease:\n", []string{"line 1", "lease"}},
		{"nested", nil, nil, "server:\n  lease: 1s\n", []string{"line 1", "server"}},
		{"list", nil, nil, "- lease\n", []string{"line 1", "mapping"}},
		{"two documents", nil, nil, "lease: 1s\n---\nlease: 2s\n", []string{"one"}},
		{"no YAML", nil, nil, "lease: '1s\n", []string{"yaml"}},
		{"file in a file", nil, nil, "config: x\n", []string{"config"}},
		{"no file", []string{"--config=/nonexistent/x.yaml"}, nil, "", []string{"--config", "/nonexistent/x.yaml"}},
		{"contradiction", []string{"--stream-grace=2m"}, nil, "", []string{"StreamGrace", "WorkerLease"}},
		{"log format", []string{"--log-format=xml"}, nil, "", []string{"--log-format", "xml"}},
		{"log level", []string{"--log-level=loud"}, nil, "", []string{"log-level", "loud"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.file != "" {
				c.args = append(c.args, "--config="+file(t, c.file))
			}
			_, err := parse(c.args, environ(c.env))
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not name %q", err, want)
				}
			}
		})
	}
}

func TestHelpNamesEverySetting(t *testing.T) {
	if _, err := parse([]string{"--help"}, environ(nil)); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("got %v", err)
	}
	var help bytes.Buffer
	writeHelp(&help)
	s := &settings{Config: server.DefaultConfig()}
	s.flagSet().VisitAll(func(f *flag.Flag) {
		if !strings.Contains(help.String(), "  --"+f.Name+" ") {
			t.Errorf("--%s is missing", f.Name)
		}
	})
	for _, want := range []string{"30m ", "10s ", "127.0.0.1:7070 ", "on ", "(none) "} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("no default %q in:\n%s", want, &help)
		}
	}
	for line := range strings.SplitSeq(help.String(), "\n") {
		if len(line) > 120 {
			t.Errorf("too long a line: %q", line)
		}
	}
}

// FuzzConfigFile: a file is read or refused; nothing else happens.
func FuzzConfigFile(f *testing.F) {
	f.Add([]byte("lease: 1s\n"))
	f.Add([]byte("a: &x [*x]\n"))
	f.Add([]byte("? {a: b}\n: c\n"))
	f.Add([]byte("---\n---\n"))
	f.Add([]byte("lease: !!binary aGk=\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		s := &settings{Config: server.DefaultConfig(), logFormat: "text"}
		if err := fromFile(s.flagSet(), data); err == nil {
			_ = s.validate()
		}
	})
}

// TestOperationsDocNamesWhatCanChange: the document lists the settings that a running server takes, and no others.
func TestOperationsDocNamesWhatCanChange(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(string(text), "<!-- reloadable -->")
	list, _, isClosed := strings.Cut(list, "<!-- end -->")
	if !ok || !isClosed {
		t.Fatal("the document has no list")
	}
	want := map[string]bool{"log-level": true}
	s := &settings{Config: server.DefaultConfig()}
	s.flagSet().VisitAll(func(f *flag.Flag) {
		for _, field := range reflect.VisibleFields(reflect.TypeFor[server.Config]()) {
			if strings.EqualFold(strings.ReplaceAll(f.Name, "-", ""), field.Name) && server.Reloadable(field.Name) {
				want[f.Name] = true
			}
		}
	})
	for _, m := range regexp.MustCompile("`([a-z0-9-]+)`").FindAllStringSubmatch(list, -1) {
		if !want[m[1]] {
			t.Errorf("it lists %s, which cannot change, or lists it twice", m[1])
		}
		delete(want, m[1])
	}
	for name := range want {
		t.Errorf("it does not list %s", name)
	}
}

var update = flag.Bool("update", false, "rewrite the list of settings in docs/operations.md")

// TestOperationsDocListsSettings: the document has what --help says, no more and no less.
func TestOperationsDocListsSettings(t *testing.T) {
	var help bytes.Buffer
	writeHelp(&help)
	_, list, ok := strings.Cut(help.String(), "unless they ask for it.\n") // after the introduction
	path := filepath.Join("..", "..", "..", "docs", "operations.md")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, isOpen := strings.Cut(string(text), "<!-- settings -->\n")
	was, after, isClosed := strings.Cut(rest, "<!-- end -->")
	if !ok || !isOpen || !isClosed {
		t.Fatal("the help has no list, or the document no place for it")
	}
	want := "```\n" + strings.TrimSpace(list) + "\n```\n"
	if was == want {
		return
	}
	if !*update {
		t.Fatal("docs/operations.md lists other settings than kvoracle --help; run: make generate")
	}
	if err := os.WriteFile(path, []byte(before+"<!-- settings -->\n"+want+"<!-- end -->"+after), 0o600); err != nil {
		t.Fatal(err)
	}
}
