package replica

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"

	"github.com/kvoracle/kvoracle/internal/oracle"

	replicav1 "github.com/kvoracle/kvoracle/gen/kvoracle/replica/v1"
	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// key names a target among replicas.
type key struct {
	worker string
	rank   uint32
}

// The longest worker's name and the most ranks that a hello may have.
const (
	maxWorker = 256
	maxRanks  = 1024
)

// subject is where a target's entries go.
func (k key) subject(prefix string) string {
	return subjectOf(prefix, k.worker, strconv.FormatUint(uint64(k.rank), 10))
}

// subjectOf is where the log has something of a worker. Names are encoded, since they may have any characters.
func subjectOf(prefix, worker, what string) string {
	return prefix + ".log." + base64.RawURLEncoding.EncodeToString([]byte(worker)) + "." + what
}

// decodeEntry reads and checks what the log has. Whether it fits what came before is the follower's to say.
func decodeEntry(b []byte) (*replicav1.Entry, error) {
	e := &replicav1.Entry{}
	if err := proto.Unmarshal(b, e); err != nil {
		return nil, errors.New("replica: not an entry")
	}
	bad := func(field string, got any) error { return fmt.Errorf("replica: entry.%s: got %v", field, got) }
	switch {
	case len(e.GetOrigin()) < 1 || len(e.GetOrigin()) > maxName:
		return nil, bad("origin", strconv.Itoa(len(e.GetOrigin()))+" bytes")
	case e.GetBoot() == 0:
		return nil, bad("boot", 0)
	case e.GetSession() == 0:
		return nil, bad("session", 0)
	case e.GetNumber() == 0:
		return nil, bad("number", 0)
	case len(e.GetWorker()) < 1 || len(e.GetWorker()) > maxWorker:
		return nil, bad("worker", strconv.Itoa(len(e.GetWorker()))+" bytes")
	case e.GetDpRank() >= maxRanks && (e.GetAction() == 0 || e.GetDpRank() != actsRank), e.GetAction() != 0 && e.GetDpRank() != actsRank:
		return nil, bad("dp_rank", e.GetDpRank())
	case e.GetClaim() == 0 && e.GetNumber() != 1:
		return nil, bad("claim", 0)
	case len(e.GetLost()) > oracleTiers || len(e.GetAfter().GetDigests()) > oracleTiers:
		return nil, bad("digests", "too many")
	case e.GetEnd() && len(e.GetRequest()) > 0, e.GetMore() && len(e.GetRequest()) == 0:
		return nil, bad("request", strconv.Itoa(len(e.GetRequest()))+" bytes")
	}
	return e, nil
}

// decodeRequest reads a reporter's message.
func decodeRequest(b []byte) (*kvoraclev1.ReportBlocksRequest, error) {
	m := &kvoraclev1.ReportBlocksRequest{}
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, errors.New("replica: entry.request: not a message")
	}
	return m, nil
}

// decodeWorker reads a worker that was registered by hand.
func decodeWorker(b []byte) (*kvoraclev1.WorkerSpec, error) {
	m := &kvoraclev1.WorkerSpec{}
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, errors.New("replica: entry.request: not a worker")
	}
	return m, nil
}

// oracleTiers is the number of tiers.
const oracleTiers = len(oracle.Standing{}.Digests)

func encodeDigests(all *[oracleTiers]oracle.Digest) []*replicav1.TierDigest {
	if *all == ([oracleTiers]oracle.Digest{}) {
		return nil
	}
	out := make([]*replicav1.TierDigest, len(all))
	for t, d := range all {
		out[t] = &replicav1.TierDigest{Count: d.Count, Xor: d.XOR, Sum: d.Sum, Copies: d.Copies, CopySum: d.CopySum}
	}
	return out
}

func decodeDigests(all []*replicav1.TierDigest) (out [oracleTiers]oracle.Digest) {
	for t, d := range all {
		out[t] = oracle.Digest{Count: d.GetCount(), XOR: d.GetXor(), Sum: d.GetSum(), Copies: d.GetCopies(), CopySum: d.GetCopySum()}
	}
	return out
}

// encodeStanding tells a standing with its digests.
func encodeStanding(st *oracle.Standing) *replicav1.Standing {
	return &replicav1.Standing{
		Applied: st.Applied, Awaiting: st.IsAwaiting, Partial: st.IsPartial, Digests: encodeDigests(&st.Digests), HasDigests: true,
	}
}
