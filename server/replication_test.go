package server

import "testing"

func TestReplicationSettings(t *testing.T) {
	for _, c := range []struct {
		is  bool
		cfg Config
	}{
		{true, Config{NATSURL: "nats://127.0.0.1:4222,nats://localhost:4223", ReplicaID: "a-1"}},
		{true, Config{NATSURL: "tls://nats.example:4222", ReplicaID: "a"}},
		{true, Config{NATSURL: "nats://nats.example:4222", ReplicaID: "a", Insecure: true}},
		{false, Config{NATSURL: "nats://nats.example:4222", ReplicaID: "a"}},
		{false, Config{NATSURL: "nats://127.0.0.1:4222"}},
		{false, Config{NATSURL: "nats://127.0.0.1:4222", ReplicaID: "a.b"}},
		{false, Config{NATSURL: "http://127.0.0.1:4222", ReplicaID: "a"}},
		{false, Config{NATSURL: "nats://127.0.0.1:4222", ReplicaID: "a", NATSPrefix: "a.>"}},
		{false, Config{NATSURL: "nats://127.0.0.1:4222", ReplicaID: "a", NATSCert: "x"}},
		{false, Config{NATSURL: "nats://127.0.0.1:4222", ReplicaID: "a", NATSCopies: 6}},
		{false, Config{ReplicaID: "a"}},
	} {
		if err := c.cfg.Validate(); (err == nil) != c.is {
			t.Errorf("%+v: %v", c.cfg, err)
		}
	}
}
