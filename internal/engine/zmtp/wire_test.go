package zmtp

import (
	"bytes"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
)

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBytesOnTheWire holds what we write to the bytes that RFC 23 and 37 give, as libzmq 4.3.5 sends them.
func TestBytesOnTheWire(t *testing.T) {
	for _, tt := range []struct {
		what string
		got  []byte
		want string
	}{
		{"greeting", greeting(), "ff0000000000000000 7f 03 01 4e554c4c 00000000000000000000000000000000 00" + strings.Repeat("00", 31)},
		{"READY", encodeReady(SUB), "04 19 05 5245414459 0b 536f636b65742d54797065 00000003 535542"},
		{"SUBSCRIBE, 3.1", encodeSubscribe("kv", 1), "04 0c 09 535542534352494245 6b76"},
		{"subscription, 3.0", encodeSubscribe("", 0), "00 01 01"},
		{"PING", encodePing(150), "04 07 04 50494e47 0096"},
		{"message", encodeMessage([][]byte{[]byte("kv"), {0, 1}, nil}), "01 02 6b76 01 02 0001 00 00"},
		{"long frame", encodeMessage([][]byte{bytes.Repeat([]byte{7}, 256)}), "02 0000000000000100" + strings.Repeat("07", 256)},
	} {
		if want := unhex(t, tt.want); !bytes.Equal(tt.got, want) {
			t.Errorf("%s: got %x, want %x", tt.what, tt.got, want)
		}
	}
}

func TestGreetingsRefused(t *testing.T) {
	for what, change := range map[string]func(*[greetingSize]byte){
		"HTTP":      func(g *[greetingSize]byte) { copy(g[:], "GET / HTTP/1.1\r\n") },
		"signature": func(g *[greetingSize]byte) { g[9] = 0x7e },
		"ZMTP 2":    func(g *[greetingSize]byte) { g[10] = 1 },
		"CURVE":     func(g *[greetingSize]byte) { copy(g[12:], "CURVE") },
		"NULLX":     func(g *[greetingSize]byte) { copy(g[12:], "NULLX") },
	} {
		g := [greetingSize]byte(greeting())
		change(&g)
		if _, err := parseGreeting(&g); !errors.Is(err, errProtocol) {
			t.Errorf("%s: got %v, want a violation", what, err)
		}
	}
	g := [greetingSize]byte(greeting())
	for minor, want := range map[byte]byte{0: 0, 1: 1, 7: 1} {
		g[11] = minor
		if got, err := parseGreeting(&g); got != want || err != nil {
			t.Errorf("3.%d: got %d, %v, want %d", minor, got, err, want)
		}
	}
}

func TestReady(t *testing.T) {
	body := appendProperty(nil, "X-Other", "zzz")
	body = appendProperty(body, "socket-TYPE", "DEALER")
	body = appendProperty(body, "Identity", "me")
	in, err := parseReady(body)
	if err != nil || in != (introduction{"DEALER", "me"}) {
		t.Errorf("got %+v, %v", in, err)
	}
	for n := range body {
		// A cut between two properties is a shorter list, any other an error.
		_, err := parseReady(body[:n])
		whole := n == 0 || n == 15 || n == 37
		if whole != (err == nil) {
			t.Errorf("cut after %d of %d bytes: %v", n, len(body), err)
		}
	}
	if _, err := parseReady(appendProperty(nil, "Identity", strings.Repeat("x", 256))); !errors.Is(err, errProtocol) {
		t.Errorf("identity of 256 bytes: %v", err)
	}
	if _, err := parseReady(unhex(t, "0141 ffffffff 00")); !errors.Is(err, errProtocol) {
		t.Errorf("a value of 4 GiB: %v", err)
	}
}

func TestCommandsRefused(t *testing.T) {
	for _, b := range []string{"", "00", "0541", "ff"} {
		if name, _, err := splitCommand(unhex(t, b)); !errors.Is(err, errProtocol) {
			t.Errorf("command %q: got %q, %v", b, name, err)
		}
	}
	for _, b := range []string{"", "00", "0000" + strings.Repeat("11", 17)} {
		if _, _, err := parsePing(unhex(t, b)); !errors.Is(err, errProtocol) {
			t.Errorf("PING %q: %v", b, err)
		}
	}
	if err := parseError(unhex(t, "0568656c6c6f")); !strings.Contains(err.Error(), "hello") {
		t.Errorf("ERROR: %v", err)
	}
	if err := parseError(unhex(t, "06686c")); !errors.Is(err, errProtocol) {
		t.Errorf("ERROR cut short: %v", err)
	}
}

func TestConfigRefused(t *testing.T) {
	for _, tt := range []struct {
		cfg  Config
		want string
	}{
		{Config{}, "type"},
		{Config{Type: 9}, "type"},
		{Config{Type: PUB, Topics: []string{"a"}}, "topics"},
		{Config{Type: SUB, Topics: make([]string, 1025)}, "topics"},
		{Config{Type: SUB, Topics: []string{strings.Repeat("x", 256)}}, "topics"},
		{Config{Type: SUB, MaxMessage: -1}, "max_message"},
		{Config{Type: SUB, HandshakeTimeout: -1}, "handshake_timeout"},
		{Config{Type: SUB, ReconnectMin: 2, ReconnectMax: 1}, "reconnect_max"},
		{Config{Type: SUB, Endpoint: "localhost:5557"}, "endpoint"},
		{Config{Type: SUB, Endpoint: "inproc://x"}, "endpoint"},
		{Config{Type: SUB, Endpoint: "tcp://*:5557"}, "endpoint"},
		{Config{Type: SUB, Endpoint: "tcp://h:0"}, "endpoint"},
		{Config{Type: SUB, Endpoint: "tcp://h"}, "endpoint"},
		{Config{Type: SUB, Endpoint: "tcp://h:65536"}, "endpoint"},
		{Config{Type: SUB, Endpoint: "tcp://a:1;b:2"}, "endpoint"},
		{Config{Type: SUB, Endpoint: "ipc://"}, "endpoint"},
	} {
		if s, err := Dial(t.Context(), tt.cfg); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), tt.want+": got") {
			t.Errorf("%+v: got %v, %v, want an error about %s", tt.cfg, s, err, tt.want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	for _, tt := range []struct {
		in      string
		bind    bool
		address string
	}{
		{"tcp://*:5557", true, ":5557"},
		{"tcp://*:*", true, ":0"},
		{"tcp://127.0.0.1:0", true, "127.0.0.1:0"},
		{"tcp://[::]:5557", true, "[::]:5557"},
		{"tcp://:::5557", true, "[::]:5557"},
		{"tcp://engine-3.pods:5557", false, "engine-3.pods:5557"},
		{"tcp://[fe80::1]:5557", false, "[fe80::1]:5557"},
		{"ipc:///run/kv.sock", false, "/run/kv.sock"},
		{"ipc://@kv", true, "@kv"},
	} {
		got, err := parseEndpoint(tt.in, tt.bind)
		if err != nil || got.address != tt.address {
			t.Errorf("%s: got %q, %v, want %q", tt.in, got.address, err, tt.address)
		}
	}
}
