package script

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// gatewayStream is one gateway's open progress stream. What it says was sent is the gateway's, and ends with it.
type gatewayStream struct {
	stream   kvoraclev1.RouteService_ReportProgressClient
	cancel   context.CancelFunc
	sequence uint64
	before   *kvoraclev1.ReportProgressResponse
}

// gateway runs a gateway line: it opens the stream of one life of a gateway. One that is open already stays so, as that of a
// process which nobody has noticed to be gone, until the new one is accepted.
func (r *Runner) gateway(ctx context.Context, args []string) (string, error) {
	if !isNumbered(args[1], 'e') {
		return "", fmt.Errorf("gateway %s: want eN, its incarnation", args[0])
	}
	incarnation, err := strconv.ParseUint(args[1][1:], 10, 64)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := r.route.ReportProgress(ctx)
	if err != nil {
		cancel()
		return refusal(err)
	}
	s := &gatewayStream{stream: stream, cancel: cancel, before: &kvoraclev1.ReportProgressResponse{}}
	hello := &kvoraclev1.ReportProgressRequest_Hello{Hello: &kvoraclev1.ProgressHello{GatewayId: args[0], Incarnation: incarnation}}
	if _, err := s.say(&kvoraclev1.ReportProgressRequest{Message: hello}); err != nil {
		cancel()
		return refusal(err)
	}
	if old := r.gates[args[0]]; old != nil {
		old.end()
	}
	r.gates[args[0]] = s
	return "ok\n", nil
}

// tell reports a step and says what became of it.
func (s *gatewayStream) tell(e *kvoraclev1.ReportProgressRequest_Event) (string, error) {
	m, err := s.say(&kvoraclev1.ReportProgressRequest{Message: e})
	if err != nil {
		s.cancel()
		return "", err
	}
	was := s.before
	s.before = m
	return outcome(m.GetUnknownDecisions()-was.GetUnknownDecisions(), m.GetLateEvents()-was.GetLateEvents(),
		m.GetRefusedEvents()-was.GetRefusedEvents()), nil
}

// say sends a message and waits for its acknowledgement.
func (s *gatewayStream) say(m *kvoraclev1.ReportProgressRequest) (*kvoraclev1.ReportProgressResponse, error) {
	s.sequence++
	m.Sequence = s.sequence
	if err := s.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for {
		ack, err := s.stream.Recv()
		if err != nil || ack.GetAckedSequence() >= s.sequence {
			return ack, err
		}
	}
}

// end half-closes the stream, which the server answers when it is done with it.
func (s *gatewayStream) end() {
	_ = s.stream.CloseSend() // the end of the stream tells the same
	for {
		if _, err := s.stream.Recv(); err != nil {
			break
		}
	}
	s.cancel()
}

// outcome says what became of one step.
func outcome(unknown, late, refused uint64) string {
	switch {
	case unknown > 0:
		return "unknown\n"
	case late > 0:
		return "late\n"
	case refused > 0:
		return "refused\n"
	default:
		return "applied\n"
	}
}
