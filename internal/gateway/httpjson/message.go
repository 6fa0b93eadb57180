package httpjson

import (
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Field numbers of route.proto.
const (
	fieldTokens      protowire.Number = 3 // of RouteRequest
	fieldBlockHashes protowire.Number = 4
	fieldTokenIDs    protowire.Number = 1 // of TokenPrompt
	fieldLocalHashes protowire.Number = 3 // of BlockHashPrompt
)

// call is the working memory of one call; see Door.calls.
type call struct {
	body, rest, message, reply, text []byte

	prompt   prompt
	route    kvoraclev1.RouteRequest
	decision kvoraclev1.RouteResponse
}

// question turns the text of a RouteRequest into the message's bytes, in c.message.
func (c *call) question() error {
	if err := c.prompt.lift(c.body); err != nil {
		return err
	}
	text := c.body
	if c.prompt.form != nothing {
		c.rest = append(c.rest[:0], c.body[:c.prompt.from]...)
		c.rest = append(c.rest, "[]"...)
		c.rest = append(c.rest, c.body[c.prompt.to:]...)
		text = c.rest
	}
	c.route.Reset()
	if err := read(text, &c.route); err != nil {
		return err
	}
	var inner proto.Message
	number, array := fieldTokens, fieldTokenIDs
	switch c.prompt.form {
	case tokens:
		inner = c.route.GetTokens()
	case hashes:
		inner = c.route.GetBlockHashes()
		number, array = fieldBlockHashes, fieldLocalHashes
	case nothing:
	}
	if inner != nil {
		c.route.Prompt = nil
	}
	var err error
	if c.message, err = appendTo(c.message[:0], &c.route); err != nil || inner == nil {
		return err
	}
	packed := c.prompt.packed
	size := proto.Size(inner)
	c.message = protowire.AppendTag(c.message, number, protowire.BytesType)
	c.message = protowire.AppendVarint(c.message, uint64(size+protowire.SizeTag(array)+protowire.SizeBytes(len(packed))))
	if c.message, err = appendTo(c.message, inner); err != nil {
		return err
	}
	c.message = protowire.AppendTag(c.message, array, protowire.BytesType)
	c.message = protowire.AppendBytes(c.message, packed)
	return nil
}

// request turns the text and the URL of any other call into the message's bytes, in c.message.
func (c *call) request(m *method, value func(field string) string, query func(field string) (string, bool)) error {
	in := m.in.New()
	if len(c.body) > 0 {
		if err := read(c.body, in.Interface()); err != nil {
			return err
		}
	}
	for _, f := range m.path {
		v := value(f.TextName())
		if had := in.Get(f).String(); had != "" && had != v {
			return &fieldError{f.TextName(), errTwoNames}
		}
		in.Set(f, protoreflect.ValueOfString(v))
	}
	for _, f := range m.query {
		if v, ok := query(f.TextName()); ok {
			in.Set(f, protoreflect.ValueOfString(v))
		}
	}
	var err error
	c.message, err = appendTo(c.message[:0], in.Interface())
	return err
}

// answer turns a message's bytes into text, in c.text.
func (c *call) answer(m *method, message []byte) error {
	var out proto.Message
	if m.isRoute {
		c.decision.Reset()
		out = &c.decision
	} else {
		out = m.out.New().Interface()
	}
	if err := proto.Unmarshal(message, out); err != nil {
		return err
	}
	var err error
	c.text, err = write(c.text[:0], out)
	return err
}

func appendTo(b []byte, m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{}.MarshalAppend(b, m)
}

// read is how text becomes a message: unknown names are refused.
func read(text []byte, m proto.Message) error {
	if len(text) == 0 {
		return nil
	}
	if err := protojson.Unmarshal(text, m); err != nil {
		return &textError{trim(err.Error())}
	}
	return nil
}

// write is how a message becomes text: with the names that the proto files and all errors have, and with zeros, so that
// a script finds every field.
func write(b []byte, m proto.Message) ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.MarshalAppend(b, m)
}

// textError is text that is no such message.
type textError struct{ text string }

// Error implements error.
func (e *textError) Error() string { return e.text }

// mostKept is the most that each buffer of a call may be to be kept for the next one.
const mostKept = 256 << 10

// forget lets go of what is too large to keep, and of what was asked.
func (c *call) forget() {
	for _, b := range []*[]byte{&c.body, &c.rest, &c.message, &c.reply, &c.text, &c.prompt.packed} {
		if cap(*b) > mostKept {
			*b = nil
		}
		*b = (*b)[:0]
	}
	c.route.Reset()
	c.decision.Reset()
}
