package extproc

import (
	"encoding/json"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// Names of the protocol.
const (
	spaceHint     = "envoy.lb.subset_hint"
	keyHint       = "x-gateway-destination-endpoint-subset"
	spaceBalancer = "envoy.lb"
	keyChoice     = "x-gateway-destination-endpoint"
	keyServed     = "x-gateway-destination-endpoint-served"
	keyDecision   = "x-kvoracle-decision" // ours
)

// candidates lists the endpoints that may be chosen; nil: all. A hint that is not a list of strings allows nothing, since
// what it allows is not known.
func candidates(m *corev3.Metadata) []string {
	v, ok := m.GetFilterMetadata()[spaceHint].GetFields()[keyHint]
	if !ok {
		return nil
	}
	out := []string{}
	for _, e := range v.GetListValue().GetValues() {
		for one := range strings.SplitSeq(e.GetStringValue(), ",") {
			if one = strings.TrimSpace(one); one != "" {
				out = append(out, one)
			}
		}
	}
	for one := range strings.SplitSeq(v.GetStringValue(), ",") {
		if one = strings.TrimSpace(one); one != "" {
			out = append(out, one)
		}
	}
	return out
}

// ofBalancer is a word in the load balancer's metadata, or empty.
func ofBalancer(m *corev3.Metadata, key string) string {
	return m.GetFilterMetadata()[spaceBalancer].GetFields()[key].GetStringValue()
}

// decisionIn is the name of a request's decision, which whichever filter has asked has kept; empty: none was made.
func decisionIn(m *corev3.Metadata) string {
	if name := ofBalancer(m, keyDecision); name != "" {
		return name
	}
	return m.GetFilterMetadata()[spaceAuthz].GetFields()[keyDecision].GetStringValue()
}

// common is what a verdict changes in a request.
func (v *verdict) common() *extprocv3.CommonResponse {
	if v == nil {
		return nil
	}
	change := &extprocv3.HeaderMutation{}
	if len(v.to) == 0 {
		change.RemoveHeaders = []string{keyChoice} // a client's own would choose for us
	} else {
		change.SetHeaders = append(change.SetHeaders, set(keyChoice, strings.Join(v.to, ",")))
	}
	if v.length > 0 {
		change.SetHeaders = append(change.SetHeaders, set("content-length", strconv.Itoa(v.length)))
	}
	return &extprocv3.CommonResponse{HeaderMutation: change}
}

func set(key, value string) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{
		Header:       &corev3.HeaderValue{Key: key, RawValue: []byte(value)},
		AppendAction: corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
	}
}

// metadata says the choice to the load balancer, and names the decision.
func (v *verdict) metadata() *structpb.Struct {
	if v == nil || len(v.to) == 0 {
		return nil
	}
	words := map[string]*structpb.Value{keyChoice: structpb.NewStringValue(strings.Join(v.to, ","))}
	if name := v.decision(); name != "" {
		words[keyDecision] = structpb.NewStringValue(name)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{
		spaceBalancer: structpb.NewStructValue(&structpb.Struct{Fields: words}),
	}}
}

func requestHeaders(v *verdict) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		DynamicMetadata: v.metadata(),
		Response: &extprocv3.ProcessingResponse_RequestHeaders{
			RequestHeaders: &extprocv3.HeadersResponse{Response: v.common()},
		},
	}
}

func requestBody(v *verdict) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		DynamicMetadata: v.metadata(),
		Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: &extprocv3.BodyResponse{Response: v.common()},
		},
	}
}

func requestChunk(b []byte, isEnd bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: chunk(b, isEnd)}}
}

func responseChunk(b []byte, isEnd bool) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: chunk(b, isEnd)}}
}

func chunk(b []byte, isEnd bool) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{
			StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b, EndOfStream: isEnd},
		},
	}}}
}

func requestTrailers() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{},
	}}
}

func responseHeaders() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{},
	}}
}

func responseBody() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: &extprocv3.BodyResponse{},
	}}
}

func responseTrailers() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extprocv3.TrailersResponse{},
	}}
}

// refusal answers in the worker's place, as OpenAI's API words its errors.
func refusal(code int, text string) *extprocv3.ProcessingResponse {
	var body struct {
		Error struct {
			Message string `json:"message"`
			Type    string `json:"type"`
			Code    int    `json:"code"`
		} `json:"error"`
	}
	body.Error.Message, body.Error.Type, body.Error.Code = text, "kvoracle", code
	b, _ := json.Marshal(&body) // strings and a number: it cannot fail
	change := &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{set("content-type", "application/json")}}
	if code == 429 {
		change.SetHeaders = append(change.SetHeaders, set("retry-after", "1"))
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extprocv3.ImmediateResponse{
			Status: &typev3.HttpStatus{Code: typev3.StatusCode(code)}, Headers: change, Body: b, Details: "kvoracle_refused",
		},
	}}
}
