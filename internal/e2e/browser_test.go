//go:build e2e

package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// browserEnv names the folder where `make e2e` has unpacked a browser. Empty: it is installed.
const browserEnv = "KVORACLE_E2E_BROWSER"

// browser is Chromium without a screen, spoken to over pipes by its DevTools protocol, and one tab of it.
type browser struct {
	t       *testing.T
	to      *os.File
	said    chan event // closed at its end
	next    int
	session string
	events  []event // all that were not answers, in order
}

// event is one message of the browser's.
type event struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  json.RawMessage `json:"error"`
}

func startBrowser(t *testing.T) *browser {
	t.Helper()
	root := os.Getenv(browserEnv)
	bin := root + "/usr/bin/chromium-headless-shell"
	if _, err := os.Stat(root + "/usr/lib/chromium/chromium-headless-shell"); err == nil {
		bin = root + "/usr/lib/chromium/chromium-headless-shell" // what the other one starts
	}
	in, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	from, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-zygote", //nolint:noctx // it ends with its pipes
		"--disable-background-networking", "--disable-component-update", "--no-first-run", "--remote-debugging-pipe",
		"--user-data-dir="+t.TempDir(), "about:blank")
	cmd.ExtraFiles = []*os.File{in, out}
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+strings.Join([]string{
		root + "/usr/lib/x86_64-linux-gnu", root + "/usr/lib/x86_64-linux-gnu/pulseaudio", root + "/usr/lib/aarch64-linux-gnu",
		root + "/usr/lib/aarch64-linux-gnu/pulseaudio", root + "/lib/x86_64-linux-gnu", root + "/lib/aarch64-linux-gnu",
	}, ":"), "HOME="+t.TempDir())
	stderr := &lockedBuffer{}
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: run this test by `make e2e`", err)
	}
	_, _ = in.Close(), out.Close()
	b := &browser{t: t, to: to, said: make(chan event, 1024)}
	go func() {
		defer close(b.said)
		r := bufio.NewReader(from)
		for {
			m, err := r.ReadBytes(0)
			if err != nil {
				return
			}
			var e event
			if json.Unmarshal(m[:len(m)-1], &e) == nil {
				b.said <- e
			}
		}
	}()
	t.Cleanup(func() {
		_ = to.Close()
		_ = cmd.Process.Kill() // it may have gone by its pipe
		for range b.said {
		}
		_ = cmd.Wait()
		_ = from.Close()
		if t.Failed() {
			t.Logf("the browser says:\n%s", stderr)
		}
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Network", "Log", "Runtime"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

// call asks the browser for something and waits for the answer.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	b.next++
	m := map[string]any{"id": b.next, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	text, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatal(err)
	}
	e := b.until(method, func(e *event) bool { return e.ID == b.next })
	if e.Error != nil {
		b.t.Fatalf("%s: %s", method, e.Error)
	}
	if result != nil {
		if err := json.Unmarshal(e.Result, result); err != nil {
			b.t.Fatal(err)
		}
	}
}

// until waits for a message, and keeps the others.
func (b *browser) until(what string, is func(*event) bool) event {
	b.t.Helper()
	end := time.NewTimer(2 * time.Minute)
	defer end.Stop()
	for {
		select {
		case e, ok := <-b.said:
			if !ok {
				b.t.Fatalf("the browser has ended before %s", what)
			}
			if e.ID == 0 {
				b.events = append(b.events, e)
			}
			if is(&e) {
				return e
			}
		case <-end.C:
			b.t.Fatalf("the browser does not come to %s", what)
		}
	}
}

// loaded waits for the next page that is there.
func (b *browser) loaded() {
	b.t.Helper()
	b.until("a page", func(e *event) bool { return e.Method == "Page.loadEventFired" })
}

// show is an expression's value, as text.
func (b *browser) show(expression string) string {
	b.t.Helper()
	var r struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	return fmt.Sprint(r.Result.Value)
}

// TestStatusPageInABrowser: Chromium shows the operator's page with what is there, in the page's own style, shows something
// newer by itself, asks nobody for anything else, and has nothing to complain of.
func TestStatusPageInABrowser(t *testing.T) {
	t.Parallel()
	ops := freePort(t)
	s := start(t, "--ops-listen="+ops, "--http-listen=127.0.0.1:0", "--data-dir="+t.TempDir())
	page := "http://" + ops + "/status"
	ask := func(path string, body any) (answer struct {
		DecisionID string `json:"decision_id"`
	},
	) {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.http+path, bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", path, resp.Status, err)
		}
		return answer
	}
	type object = map[string]any
	register := func(name string) {
		t.Helper()
		ask("/v1/workers", object{"spec": object{"worker_id": name, "address": "w:8000", "model": "demo", "block_size": 16}})
	}
	register(`<b>w-1</b>`)
	a := ask("/v1/route", object{"model": "demo", "tokens": object{"token_ids": make([]int, 100)}})

	b := startBrowser(t)
	b.call("Page.navigate", map[string]any{"url": page}, nil)
	b.loaded()
	for expression, want := range map[string]string{
		`document.title`: "kvoracle",
		`document.querySelector("#fleet tbody td").innerText`:                 `<b>w-1</b>`,
		`document.querySelectorAll("#fleet tbody tr").length`:                 "1",
		`document.querySelector("#decisions tbody td").innerText`:             a.DecisionID,
		`document.querySelector("#log tbody td").innerText`:                   "there",
		`document.scripts.length`:                                             "0",
		`getComputedStyle(document.querySelector("td.n")).textAlign`:          "right",
		`document.documentElement.scrollHeight > document.body.offsetTop + 9`: "true",
	} {
		if got := b.show(expression); got != want {
			t.Errorf("%s is %q, want %q", expression, got, want)
		}
	}
	register("w-2")
	rows := ""
	for n := 0; n < 3 && rows != "2"; n++ { // the next page may have been under way when it came
		b.loaded() // it comes again by itself
		rows = b.show(`document.querySelectorAll("#fleet tbody tr").length`)
	}
	if rows != "2" {
		t.Errorf("%s workers are shown later, want 2", rows)
	}

	var urls []string
	for _, e := range b.events {
		var p struct {
			Request struct{ URL string }
			Entry   struct{ Level, Text, URL string }
		}
		if err := json.Unmarshal(e.Params, &p); err != nil {
			t.Fatal(err)
		}
		switch e.Method {
		case "Network.requestWillBeSent":
			urls = append(urls, p.Request.URL)
		case "Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown":
			t.Errorf("the browser complains: %s %s", e.Method, e.Params)
		}
	}
	if urls = slices.Compact(urls); len(urls) != 1 || urls[0] != page {
		t.Errorf("it has asked for %q, want the page alone", urls)
	}
}
