package client

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func tokenFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokenFollowsItsFile(t *testing.T) {
	path := tokenFile(t, "  first\n")
	var log strings.Builder
	tok, err := newToken(&Security{TokenFile: path, Log: slog.New(slog.NewTextHandler(&log, nil))}, time.Unix(1000, 0))
	if err != nil {
		t.Fatal(err)
	}
	shown := func() string { return (*tok.header.Load())["authorization"] }
	now := time.Unix(1000, 0)
	for _, step := range []struct {
		after time.Duration
		text  string
		want  string
	}{
		{0, "second", "Bearer first"}, // not looked at yet
		{tokenEvery, "second", "Bearer second"},
		{tokenEvery, "two words", "Bearer second"},
		{tokenEvery, "", "Bearer second"},
		{tokenEvery, "third", "Bearer third"},
	} {
		if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
			t.Fatal(err)
		}
		now = now.Add(step.after)
		if tok.follow(context.Background(), now); shown() != step.want {
			t.Errorf("with %q in the file: %q, want %q", step.text, shown(), step.want)
		}
	}
	if n := strings.Count(log.String(), "cannot be used"); n != 1 || strings.Contains(log.String(), "words") {
		t.Errorf("want one line about the bad file, without what is in it:\n%s", &log)
	}
}

func TestSecurityMistakesAreNamed(t *testing.T) {
	path := tokenFile(t, "hush hush")
	for name, c := range map[string]struct {
		s    Security
		want string
	}{
		"plain and authorities": {Security{Plaintext: true, CAFile: "x"}, "Plaintext"},
		"one file of two":       {Security{CertFile: "x"}, "one file of the two"},
		"no such file":          {Security{CAFile: "/nonexistent/ca.pem"}, "/nonexistent/ca.pem"},
		"two tokens":            {Security{Plaintext: true, Token: "hush", TokenFile: path}, "not both"},
		"no token":              {Security{Plaintext: true, TokenFile: path}, path},
		"no token file":         {Security{Plaintext: true, TokenFile: "/nonexistent/token"}, "/nonexistent/token"},
	} {
		_, err := c.s.DialOptions()
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want it to name %q", name, err, c.want)
		}
	}
	if opts, err := (Security{Plaintext: true}).DialOptions(); err != nil || len(opts) != 1 {
		t.Errorf("%d options, %v", len(opts), err)
	}
}
