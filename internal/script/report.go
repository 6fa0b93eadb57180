package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// blockStream is one open block stream with what its own batches should have left behind.
type blockStream struct {
	stream      kvoraclev1.RouteService_ReportBlocksClient
	cancel      context.CancelFunc
	incarnation uint64
	before      *kvoraclev1.BlockCounters
	awaiting    bool
	mirror      *mirror
	begun       uint64 // sequence of the snapshot under way
	isBuilding  bool
	isVoid      bool // it was dropped, and its end is still to come
}

func (s *blockStream) close() { s.cancel() }

type loadStream struct {
	stream kvoraclev1.RouteService_ReportLoadClient
	cancel context.CancelFunc
}

func (s *loadStream) close() { s.cancel() }

func (r *Runner) cut(who string) {
	if s := r.gates[who]; s != nil {
		s.end()
		delete(r.gates, who)
	}
	if s := r.blocks[who]; s != nil {
		// A half-close is answered when the server is done with the stream.
		_ = s.stream.CloseSend() // the end of the stream tells the same
		for {
			if _, err := s.stream.Recv(); err != nil {
				break
			}
		}
		s.close()
		delete(r.blocks, who)
	}
}

// reportBlocks runs an RB line.
func (r *Runner) reportBlocks(ctx context.Context, args []string, o map[string]string) (string, error) {
	who := args[0]
	var incarnation, seq uint64
	var ops []string
	hasLife := false
	for _, a := range args[1:] {
		switch {
		case isNumbered(a, 'e'):
			incarnation, _ = strconv.ParseUint(a[1:], 10, 64)
			hasLife = true
		case isNumbered(a, 's'):
			seq, _ = strconv.ParseUint(a[1:], 10, 64)
		default:
			ops = append(ops, a)
		}
	}
	s := r.blocks[who]
	if s == nil || (hasLife && s.incarnation != incarnation) {
		if !hasLife {
			return "", fmt.Errorf("RB %s: the first report wants eN", who)
		}
		r.cut(who)
		var answer string
		var err error
		s, answer, err = r.hello(ctx, who, incarnation, seq, o)
		if err != nil || s == nil {
			return answer, err
		}
		r.blocks[who] = s
	}
	w := r.worker(strings.Split(who, "/")[0])
	messages, err := w.messages(seq, ops, o, s.mirror)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for i, m := range messages {
		if err := s.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			return "", err
		}
		answer, err := s.answer(i == len(messages)-1, s.voids(m), m.GetSnapshotEnd() != nil)
		if err != nil {
			delete(r.blocks, who)
			return refusal(err)
		}
		out.WriteString(answer)
	}
	return out.String(), nil
}

func isNumbered(s string, letter byte) bool {
	if len(s) < 2 || s[0] != letter {
		return false
	}
	_, err := strconv.ParseUint(s[1:], 10, 64)
	return err == nil
}

// hello opens a stream. A refused one is an answer.
func (r *Runner) hello(ctx context.Context, who string, incarnation, seq uint64, o map[string]string) (*blockStream, string, error) {
	name, rank, err := target(who)
	if err != nil {
		return nil, "", err
	}
	next := seq
	if v, ok := o["next"]; ok {
		if next, err = strconv.ParseUint(v, 10, 64); err != nil {
			return nil, "", err
		}
	}
	w := r.worker(name)
	ctx, cancel := context.WithCancel(ctx)
	stream, err := r.route.ReportBlocks(ctx)
	if err == nil {
		err = stream.Send(&kvoraclev1.ReportBlocksRequest{Message: &kvoraclev1.ReportBlocksRequest_Hello{Hello: &kvoraclev1.BlocksHello{
			Worker: w.spec(name), DpRank: rank, Incarnation: incarnation, NextSequence: next, HashScheme: w.scheme, Repeats: w.repeats,
			EngineHashes: w.naming != "", RootParents: w.roots, Groups: w.groups, HashWindow: w.window,
		}}})
	}
	var first *kvoraclev1.ReportBlocksResponse
	if err == nil || errors.Is(err, io.EOF) {
		first, err = stream.Recv()
	}
	if err != nil {
		cancel()
		answer, err := refusal(err)
		return nil, answer, err
	}
	return &blockStream{
		stream: stream, cancel: cancel, incarnation: incarnation, awaiting: first.GetAccepted().GetSnapshotRequired(), before: &kvoraclev1.BlockCounters{}, mirror: newMirror(w.repeats),
	}, "", nil
}

// voids follows a snapshot under way and tells the messages that void it: their ack is followed by a new request.
func (s *blockStream) voids(m *kvoraclev1.ReportBlocksRequest) bool {
	switch x := m.GetMessage().(type) {
	case *kvoraclev1.ReportBlocksRequest_SnapshotBegin:
		s.begun, s.isBuilding, s.isVoid = x.SnapshotBegin.GetSequence(), true, false
	case *kvoraclev1.ReportBlocksRequest_Batch:
		if s.isBuilding && x.Batch.GetSequence() > s.begun {
			s.isBuilding, s.isVoid = false, true
			return true
		}
	}
	return false
}

// answer reads the ack of the message just sent, and what comes with it: requests for a snapshot that no message of the
// stream has caused stand before the ack, one that this message has caused behind it.
func (s *blockStream) answer(show, voids, isEnd bool) (string, error) {
	var outside, said, own string
	var ack *kvoraclev1.BlocksAck
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return "", err
		}
		if x := m.GetResync(); x != nil {
			s.awaiting = true
			if isFromOutside(x.GetReason()) {
				outside += printResync(x)
				s.isBuilding, s.isVoid = false, s.isVoid || s.isBuilding
			} else {
				own += printResync(x)
			}
		} else if ack = m.GetAck(); ack == nil {
			return "", fmt.Errorf("unexpected message %v", m)
		} else if show {
			said = printAck(ack, s.before)
			s.before = ack.GetCounters()
		}
		if ack == nil || ack.GetSnapshotRequired() && !s.awaiting {
			continue // a request is on its way
		}
		if own == "" && (voids || isEnd && !s.isVoid && isRefused(ack, kvoraclev1.RefusalReason_REFUSAL_REASON_SNAPSHOT)) {
			continue
		}
		s.awaiting = ack.GetSnapshotRequired()
		if isEnd {
			s.isBuilding, s.isVoid = false, false
		}
		return outside + said + own, nil
	}
}

func isRefused(ack *kvoraclev1.BlocksAck, why kvoraclev1.RefusalReason) bool {
	return slices.ContainsFunc(ack.GetRefusals(), func(r *kvoraclev1.Refusal) bool { return r.GetReason() == why })
}

// isFromOutside tells the requests that no message of the stream has caused.
func isFromOutside(r kvoraclev1.ResyncReason) bool {
	return r == kvoraclev1.ResyncReason_RESYNC_REASON_OPERATOR || r == kvoraclev1.ResyncReason_RESYNC_REASON_OUTCOMES
}

// reportLoad runs an RL line.
func (r *Runner) reportLoad(ctx context.Context, who string, o map[string]string) (string, error) {
	s := r.loads[who]
	if s == nil {
		name, rank, err := target(who)
		if err != nil {
			return "", err
		}
		ctx, cancel := context.WithCancel(ctx)
		stream, err := r.route.ReportLoad(ctx)
		if err == nil {
			err = stream.Send(&kvoraclev1.ReportLoadRequest{Message: &kvoraclev1.ReportLoadRequest_Hello{
				Hello: &kvoraclev1.LoadHello{Target: &kvoraclev1.Target{WorkerId: name, DpRank: rank}},
			}})
		}
		if err != nil && !errors.Is(err, io.EOF) {
			cancel()
			return refusal(err)
		}
		s = &loadStream{stream, cancel}
		r.loads[who] = s
	}
	sample := &kvoraclev1.LoadSample{}
	for k, v := range o {
		n, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			return "", fmt.Errorf("RL: %s=%s: %w", k, v, err)
		}
		small := uint32(n)
		switch k {
		case "run":
			sample.RunningRequests = &small
		case "wait":
			sample.WaitingRequests = &small
		case "tokens":
			sample.WaitingPrefillTokens = &n
		case "used":
			sample.UsedBlocks = &n
		case "total":
			sample.TotalBlocks = &n
		case "at":
			sample.SampledAtUnixNanos = n
		default:
			return "", fmt.Errorf("RL: unknown option %q", k)
		}
	}
	err := s.stream.Send(&kvoraclev1.ReportLoadRequest{Message: &kvoraclev1.ReportLoadRequest_Sample{Sample: sample}})
	if err == nil || errors.Is(err, io.EOF) {
		var m *kvoraclev1.ReportLoadResponse
		if m, err = s.stream.Recv(); err == nil {
			return fmt.Sprintf("applied=%d ignored=%d in_flight=%d booked=%d\n",
				m.GetAppliedSamples(), m.GetIgnoredSamples(), m.GetBelievedInFlight(), m.GetBookedRequests()), nil
		}
	}
	s.close()
	delete(r.loads, who)
	return refusal(err)
}
