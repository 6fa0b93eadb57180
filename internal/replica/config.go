package replica

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"regexp"
	"time"

	"github.com/nats-io/nats.go"
)

// Config is how a node takes part. A duration or limit that is zero has the default named beside it.
type Config struct {
	// URL lists NATS servers, comma-separated.
	URL string
	// Server is a NATS of this process's own, instead of URL. Then there are no other replicas: the log is for the next life of
	// this one, which reads it again before it begins (replay.go), and nothing is told that nobody would hear.
	Server nats.InProcessConnProvider
	// Name tells the replica from others: 1 to 64 letters, digits, '-' or '_'. No two that run may have the same.
	Name string
	// Prefix begins all subjects and names the log, so that services share a NATS. Default "kvoracle".
	Prefix string
	// CredsFile has NATS credentials (JWT and seed). Empty: none.
	CredsFile string
	// TLS is for the next connection to NATS; it is called for each, so that files may change. Nil: as the URL says, by the
	// system's authorities.
	TLS func() *tls.Config

	// LogBytes and LogAge bound the log where it does not exist yet; default 1 GiB and an hour. With Server they hold for one
	// that is there, too, and it has no age: it is trimmed by what is saved, however long ago that was. LogCopies is on how
	// many NATS servers it is kept; default 1.
	LogBytes  int64
	LogAge    time.Duration
	LogCopies int

	// MaxMessageBytes is the largest message of a reporter; default 4 MiB and 64 KiB.
	MaxMessageBytes int
	// MaxTargets bounds the targets that are followed; default 65,536.
	MaxTargets int
	// Seed is of the fingerprints of batches. The zero Seed: one of the node's own.
	Seed maphash.Seed

	// Save writes what the oracle knows, and Load puts that back into it, reading it twice; if it fails, nothing of it is there.
	// With several replicas copies are kept in NATS by them. Nil: none are.
	Save func(ctx context.Context, to io.Writer) error
	Load func(open func() (io.ReadCloser, error)) error
	// SaveEvery is how old the newest copy is when another is made; default a minute. SaveBytes bounds what all copies take,
	// where there is no store for them yet; default 2 GiB.
	SaveEvery time.Duration
	SaveBytes int64

	// HelloWait is how long a reporter's hello waits for the log's tail; default 2 s, with Server 10 s.
	HelloWait time.Duration
	// AckWait is how long an entry may take into the log before the stream goes on without; default 2 s, with Server 10 s:
	// there the log is what the reports are kept in, and nobody else has them.
	AckWait time.Duration
	// BeatEvery is the time between signs of life; default 500 ms. An origin that gives none for BeatTimeout is dead;
	// default 5 s.
	BeatEvery, BeatTimeout time.Duration
	// DigestEvery is the time between an origin's digests of a target; default 30 s.
	DigestEvery time.Duration
	// SilentAfter is how long a target may go without any; default four times DigestEvery. Its stream is then taken for cut.
	SilentAfter time.Duration
	// Grace is how long other replicas' targets stay as they are when NATS is away; default 10 s.
	Grace time.Duration
	// JoinWindow is how long a replica that starts waits for others to answer; default 1 s. After JoinTimeout it serves
	// with what it has; default 60 s.
	JoinWindow, JoinTimeout time.Duration

	pieceBytes int           // of a request in one entry; NATS may allow less
	pingEvery  time.Duration // NATS that does not answer two of them is away
	natsWait   time.Duration // for a connection, or an answer of NATS
	sweepAfter time.Duration // how old remains of a copy are that nobody writes any more
	born       time.Time     // when this life began by the machine's clock; zero: now
}

const (
	maxName    = 64
	maxOrigins = 256
	maxParts   = 64 << 20 // bytes of messages that have come in part, of all targets
	maxPending = 1024     // entries on their way into the log
	maxClosed  = 4096     // streams that ended while NATS was away
)

func (c *Config) withDefaults() Config {
	d := *c
	dur := func(v *time.Duration, def time.Duration) {
		if *v <= 0 {
			*v = def
		}
	}
	if d.Server != nil {
		d.URL = nats.DefaultURL // the client wants one, and does not look at it
		dur(&d.HelloWait, 10*time.Second)
		dur(&d.AckWait, 10*time.Second)
		dur(&d.pingEvery, time.Minute)
		dur(&d.JoinWindow, time.Millisecond)
		d.LogAge = 0
	} else {
		dur(&d.LogAge, time.Hour)
	}
	if d.born.IsZero() {
		d.born = time.Now()
	}
	dur(&d.SaveEvery, time.Minute)
	dur(&d.sweepAfter, 10*time.Minute)
	dur(&d.HelloWait, 2*time.Second)
	dur(&d.AckWait, 2*time.Second)
	dur(&d.BeatEvery, 500*time.Millisecond)
	dur(&d.BeatTimeout, 5*time.Second)
	dur(&d.DigestEvery, 30*time.Second)
	dur(&d.SilentAfter, 4*d.DigestEvery)
	dur(&d.pingEvery, 5*time.Second) // what must not wait for it has times of its own: acks, and the heartbeats of the log
	dur(&d.natsWait, 5*time.Second)
	dur(&d.Grace, 10*time.Second)
	dur(&d.JoinWindow, time.Second)
	dur(&d.JoinTimeout, time.Minute)
	if d.pieceBytes <= 0 {
		d.pieceBytes = 512 << 10
	}
	if d.Prefix == "" {
		d.Prefix = "kvoracle"
	}
	if d.LogBytes <= 0 {
		d.LogBytes = 1 << 30
	}
	if d.SaveBytes <= 0 {
		d.SaveBytes = 2 << 30
	}
	d.LogCopies = max(d.LogCopies, 1)
	if d.MaxMessageBytes <= 0 {
		d.MaxMessageBytes = 4<<20 + 64<<10
	}
	if d.MaxTargets <= 0 {
		d.MaxTargets = 65_536
	}
	if d.Seed == (maphash.Seed{}) {
		d.Seed = maphash.MakeSeed()
	}
	return d
}

// Validate checks the names.
func (c *Config) Validate() error {
	if c.URL == "" && c.Server == nil {
		return errors.New("replica: URL is required")
	}
	if !regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString(c.Name) {
		return fmt.Errorf("replica: Name: got %q, want 1 to %d letters, digits, '-' or '_'", c.Name, maxName)
	}
	if c.Prefix != "" && !regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString(c.Prefix) {
		return fmt.Errorf("replica: Prefix: got %q, want up to 64 letters, digits, '-' or '_'", c.Prefix)
	}
	return nil
}
