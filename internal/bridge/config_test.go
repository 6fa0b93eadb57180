package bridge

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestFileInDeploy(t *testing.T) {
	f, err := os.Open("../../deploy/bridge.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := ReadConfig(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(); err != nil {
		t.Fatal(err)
	}
	if e := c.Engines[0]; len(c.Engines) != 5 || e.API != "http://10.0.0.5:8000" || e.MaxRunning != 256 || time.Duration(e.LoadEvery) != DefaultLoadEvery {
		t.Errorf("%+v", c)
	}
}

func TestConfigIsRefusedByName(t *testing.T) {
	const good = "oracle: o:1\nengines: [{worker: w, events: 'tcp://h:5557'}]"
	for text, want := range map[string]string{
		"oracle: o:1\nengine: []":                                                                       "engine not found",
		"oracle: o:1\nengines: [{worker: w, evnets: x}]":                                                "evnets not found",
		"oracle: o:1\nengines: [{worker: w, load-every: 3}]":                                            "want a duration",
		good + "\n---\noracle: x":                                                                       "more than one document",
		"oracle: o:1":                                                                                   "engines: got 0",
		"engines: [{worker: w, events: 'tcp://h:5557'}]":                                                "oracle: want host:port",
		"oracle: o:1\nengines: [{events: 'tcp://h:5557'}]":                                              "engines[0]: worker: want a name",
		"oracle: o:1\nengines: [{worker: w, engine: llama.cpp, events: 'tcp://h:1'}]":                   `engine: got "llama.cpp"`,
		"oracle: o:1\nengines: [{worker: w}]":                                                           "w: events: want",
		"oracle: o:1\nengines: [{worker: w, events: 'h:5557'}]":                                         `events: got "h:5557"`,
		"oracle: o:1\nengines: [{worker: w, events: 'tcp://h:65535', ranks: 2}]":                        "events: got",
		"oracle: o:1\nengines: [{worker: w, events: 'ipc:///x', ranks: 2}]":                             "one rank",
		"oracle: o:1\nengines: [{worker: w, events: 'tcp://h:5557', replay: 'tcp://h:5558', ranks: 2}]": "replay: 1 ports from events",
		"oracle: o:1\nengines: [{worker: w, events: 'tcp://h:1', metrics: 'h:8000'}]":                   "metrics: want http",
		"oracle: o:1\nengines: [{worker: w, events: 'tcp://h:1', ranks: 257}]":                          "ranks: got 257",
		"oracle: o:1\nengines: [{worker: w, events: 'tcp://h:1', load-every: 1ms}]":                     "load-every: got 1ms",
		"oracle: o:1\nengines: [{worker: w, events: 'tcp://h:1'}, {worker: w, events: 'tcp://h:2'}]":    "w is given twice",
		"oracle: o:1\nengines: [{worker: w, events: 'grpc://h'}]":                                       "events: want grpc://host:port or grpcs://host:port",
		"oracle: o:1\nengines: [{worker: w, events: 'grpcs://h'}]":                                      "events: want grpc://host:port or grpcs://host:port",
		"oracle: o:1\nengines: [{worker: w, events: 'grpc://h:1', events-ca: /ca}]":                     "events-ca: it is for grpcs://",
		"oracle: o:1\nengines: [{worker: w, events: 'tcp://h:1', events-key: /k}]":                      "events-key: it is for grpcs://",
		"oracle: o:1\nengines: [{worker: w, events: 'grpcs://h:1', events-cert: /c}]":                   "events-cert and events-key: want both",
		"oracle: o:1\nengines: [{worker: w, events: 'http://h:1'}]":                                     "events: want http://host:port/kv_cache_events",
		"oracle: o:1\nengines: [{worker: w, events: 'grpc://h:1', replay: 'tcp://h:2'}]":                "replay: it is for ZeroMQ, and events is grpc://h:1",
		"oracle: o:1\nengines: [{worker: w, events: 'http://h:1/x', bind: true}]":                       "bind: it is for ZeroMQ",
		"oracle: o:1\nengines: [{worker: w, events: 'grpc://h:1', topic: kv}]":                          "topic: it is for ZeroMQ",
		"oracle: o:1\nengines: [{worker: w, events: 'http://h:1/x', engine: vllm}]":                     "engine: vllm has no events at http://h:1/x",
		"oracle: o:1\nengines: [{worker: w, events: 'tcp://h:1', load: 'h:2'}]":                         `load: got "h:2"`,
	} {
		c, err := ReadConfig(strings.NewReader(text))
		if err == nil {
			err = c.Check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	c, err := ReadConfig(strings.NewReader(good))
	if err == nil {
		err = c.Check()
	}
	if err != nil {
		t.Error(err)
	}
}

func TestEndpoints(t *testing.T) {
	if at, err := rankEndpoint("tcp://[::1]:5557", 3); err != nil || at != "tcp://[::1]:5560" {
		t.Errorf("%q, %v", at, err)
	}
	for engine, want := range map[string]string{
		"tcp://*:5557": "tcp://10.0.0.5:5557", "tcp://0.0.0.0:5557": "tcp://10.0.0.5:5557", "tcp://h:1": "tcp://h:1", "ipc:///x": "ipc:///x",
	} {
		if got := reachable(engine, "http://10.0.0.5:8000"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func FuzzReadConfig(f *testing.F) {
	f.Add("oracle: o:1\nengines: [{worker: w, events: 'tcp://h:5557', labels: {a: b}}]")
	f.Add("engines: [{worker: w, load-every: 10ms, ranks: 3, events: 'tcp://h:65534'}]")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := ReadConfig(strings.NewReader(text))
		if err != nil || c.Check() != nil {
			return
		}
		for _, e := range c.Engines {
			if e.Events == "" || wayOf(e.Events) != overZeroMQ {
				continue
			}
			if _, err := rankEndpoint(e.Events, max(e.Ranks, 1)-1); err != nil {
				t.Fatalf("%+v was taken: %v", e, err)
			}
		}
	})
}
