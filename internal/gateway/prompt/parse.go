package prompt

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/kvoracle/kvoracle/internal/block"
)

// Limits bounds what a body may hold.
type Limits struct {
	Tokens int // token ids in a prompt
	Name   int // bytes of a model's name, and of a salt
}

// Request is what a decision needs of one request. Its Text is slices of the body.
type Request struct {
	Model     string // empty: it names none
	CacheSalt string // vLLM's cache_salt
	IsStream  bool   // the answer is wanted piece by piece

	Tokens []uint32     // the prompt's token ids; nil: it is text
	Items  []block.Item // what lies under placeholders among them
	Text   [][]byte     // the prompt as text, in pieces; see the package comment
	Prompt Span         // what Text was taken from, as JSON: messages, prompt or input
	Tools  Span         // tools, as JSON
	// HasMedia says that a part of the text is an image, a sound or the like: token ids alone do not tell such prompts apart.
	HasMedia bool
}

// Errors of Parse. Their texts hold nothing of the body.
var (
	ErrSyntax = errors.New("prompt: the body is not JSON")
	ErrShape  = errors.New("prompt: the body is not a request of its kind")
	ErrLimit  = errors.New("prompt: the body is beyond a limit")
)

// dataPrefix begins a string that is an attachment, if it is longer than dataLeast.
const (
	dataPrefix = `"data:`
	dataLeast  = 256
)

// keptBuffer is the longest piece that a pooled decoder has read through a buffer of its own.
const keptBuffer = 64 << 10

// Parser reads bodies. The zero value is ready, and may be used by many goroutines; it keeps working memory.
type Parser struct {
	decoders sync.Pool // of *jsontext.Decoder
}

// Parse reads a body of a kind, in pieces.
func (p *Parser) Parse(kind Kind, body [][]byte, lim Limits) (*Request, error) {
	dec, ok := p.decoders.Get().(*jsontext.Decoder)
	if !ok {
		dec = new(jsontext.Decoder)
	}
	isShort := true
	var in io.Reader
	if len(body) == 1 {
		in = bytes.NewBuffer(body[0]) // read where it lies
	} else {
		isShort = length(body) <= keptBuffer
		in = &reader{slices.Clone(body)}
	}
	dec.Reset(in, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	s := &scan{dec: dec, kind: kind, body: body, lim: lim}
	err := s.all()
	if isShort {
		dec.Reset(&reader{}) // lets go of the body
		p.decoders.Put(dec)
	}
	if err != nil {
		return nil, err
	}
	return s.request()
}

func length(body [][]byte) int {
	n := 0
	for _, p := range body {
		n += len(p)
	}
	return n
}

// scan is one body on its way.
type scan struct {
	dec  *jsontext.Decoder
	kind Kind
	body [][]byte
	lim  Limits

	out    Request
	shape  error // a fault that does not hinder reading on; a later member of the same name may mend it
	places [numPlaces]part
	tokens []uint32
	model  member
	salt   member

	media    Features
	mediaErr error
}

// member is a string of the body.
type member struct {
	value string
	err   error
}

// part is one place of the text.
type part struct {
	whole Span
	spans []Span
	marks [][]byte // what stands after each span but the last
	err   error
	// hasMedia says that a part of it is no text.
	hasMedia bool
}

// all reads the whole body: it must be one object and nothing else.
func (s *scan) all() error {
	if s.dec.PeekKind() != '{' {
		if err := s.dec.SkipValue(); err != nil {
			return ErrSyntax
		}
		s.shape = fmt.Errorf("%w: want an object", ErrShape)
		return s.end()
	}
	if err := s.members(s.member); err != nil {
		return err
	}
	return s.end()
}

// members reads an object; f reads each value.
func (s *scan) members(f func(name string) error) error {
	if err := s.step(); err != nil {
		return err
	}
	for s.dec.PeekKind() != '}' {
		name, err := s.dec.ReadValue()
		if err != nil {
			return ErrSyntax
		}
		if err := f(unquoted(name)); err != nil {
			return err
		}
	}
	return s.step()
}

// end must be the body's.
func (s *scan) end() error {
	if _, err := s.dec.ReadToken(); !errors.Is(err, io.EOF) {
		return ErrSyntax
	}
	return s.shape
}

// skip passes a value over.
func (s *scan) skip() error {
	if err := s.dec.SkipValue(); err != nil {
		return ErrSyntax
	}
	return nil
}

// step reads a bracket or a null.
func (s *scan) step() error {
	if _, err := s.dec.ReadToken(); err != nil {
		return ErrSyntax
	}
	return nil
}

// unquoted is a name as people mean it, escapes or not.
func unquoted(name jsontext.Value) string {
	inner := name[1 : len(name)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return string(inner)
	}
	out, _ := jsontext.AppendUnquote(nil, name) // invalid UTF-8 is replaced, as encoding/json does
	return string(out)
}

// member reads the value of a name.
func (s *scan) member(name string) error {
	switch name {
	case "model":
		return s.short(&s.model, name)
	case "cache_salt":
		return s.short(&s.salt, name)
	case "stream":
		v, err := s.dec.ReadValue()
		if err != nil {
			return ErrSyntax
		}
		s.out.IsStream = v.Kind() == 't'
		return nil
	case "features":
		if s.kind == Generate {
			return s.features()
		}
	}
	place := s.kind.place(name)
	if place < 0 {
		return s.skip()
	}
	p := &s.places[place]
	*p = part{}
	if place == third {
		s.tokens = nil
	}
	switch {
	case s.dec.PeekKind() == 'n':
		return s.step() // null is none
	case s.kind == Generate:
		return s.one(p)
	case place == third && s.kind.takesTokens() && name != "messages":
		return s.prompts(p)
	default:
		return s.text(p, place == third)
	}
}

// short reads a string that names something. null is none.
func (s *scan) short(m *member, name string) error {
	v, err := s.dec.ReadValue()
	if err != nil {
		return ErrSyntax
	}
	*m = member{}
	switch {
	case v.Kind() == 'n':
	case v.Kind() != '"':
		m.err = fmt.Errorf("%w: %s: want a string", ErrShape, name)
	case len(v) > 6*s.lim.Name+2: // a byte takes six characters at most
		m.err = fmt.Errorf("%w: %s: want at most %d bytes", ErrLimit, name, s.lim.Name)
	default:
		out, err := jsontext.AppendUnquote(nil, v)
		switch {
		case err != nil:
			m.err = fmt.Errorf("%w: %s: want UTF-8", ErrShape, name)
		case len(out) > s.lim.Name:
			m.err = fmt.Errorf("%w: %s: want at most %d bytes", ErrLimit, name, s.lim.Name)
		}
		m.value = string(out)
	}
	return nil
}

// prompts reads one prompt or several: text or token ids.
func (s *scan) prompts(p *part) error {
	switch kind := s.dec.PeekKind(); {
	case kind == '"':
		return s.text(p, true)
	case kind == '[':
		if err := s.step(); err != nil {
			return err
		}
		from := int(s.dec.InputOffset()) - 1
		err := s.listed(p)
		p.whole = Span{from, int(s.dec.InputOffset())}
		return err
	default:
		p.err = fmt.Errorf("%w: the prompt: want a string or a list", ErrShape)
		return s.skip()
	}
}

// one reads the token ids of the only prompt.
func (s *scan) one(p *part) error {
	if s.dec.PeekKind() != '[' {
		p.err = fmt.Errorf("%w: the prompt: want a list of token ids", ErrShape)
		return s.skip()
	}
	if err := s.step(); err != nil {
		return err
	}
	from := int(s.dec.InputOffset()) - 1
	if err := s.ids(p, ']'); err != nil {
		return err
	}
	if err := s.step(); err != nil {
		return err
	}
	p.whole = Span{from, int(s.dec.InputOffset())}
	return nil
}

// listed reads the rest of a list whose bracket was read: token ids, or prompts, of which the first counts.
func (s *scan) listed(p *part) error {
	switch kind := s.dec.PeekKind(); {
	case kind == '0':
		if err := s.ids(p, ']'); err != nil {
			return err
		}
	case kind == '[':
		if err := s.step(); err != nil {
			return err
		}
		if err := s.ids(p, ']'); err != nil {
			return err
		}
		if err := s.step(); err != nil {
			return err
		}
	case kind == '"':
		if err := s.text(p, true); err != nil {
			return err
		}
	case kind == ']':
		p.err = fmt.Errorf("%w: the prompt: want at least one", ErrShape)
	default:
		p.err = fmt.Errorf("%w: the prompt: want strings, token ids or lists of them", ErrShape)
	}
	for s.dec.PeekKind() != ']' {
		if err := s.dec.SkipValue(); err != nil {
			return ErrSyntax
		}
	}
	return s.step()
}

// ids reads token ids up to a closing bracket, which stays.
func (s *scan) ids(p *part, end jsontext.Kind) error {
	s.tokens = []uint32{}
	for s.dec.PeekKind() != end {
		v, err := s.dec.ReadValue()
		if err != nil {
			return ErrSyntax
		}
		if p.err != nil {
			continue
		}
		id, ok := tokenID(v)
		switch {
		case !ok:
			p.err = fmt.Errorf("%w: the prompt: want token ids from 0 to 2^32-1", ErrShape)
		case len(s.tokens) >= s.lim.Tokens:
			p.err = fmt.Errorf("%w: the prompt: want at most %d tokens", ErrLimit, s.lim.Tokens)
			s.tokens = []uint32{}
		default:
			s.tokens = append(s.tokens, id)
		}
	}
	return nil
}

// tokenID reads a whole number that is written as one.
func tokenID(v jsontext.Value) (uint32, bool) {
	n := uint64(0)
	if len(v) > 10 {
		return 0, false
	}
	for _, c := range v {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	return uint32(n), n < 1<<32
}

// text notes where a value lies, with its attachments cut out. open leaves out what closes it, since a longer prompt goes on
// there.
func (s *scan) text(p *part, open bool) error {
	depth := s.dec.StackDepth()
	from := -1
	if kind := s.dec.PeekKind(); open && kind != '[' && kind != '"' {
		p.err = fmt.Errorf("%w: the prompt: want a string or a list", ErrShape)
	}
	for {
		kind := s.dec.PeekKind()
		if isBracket := kind == '[' || kind == ']' || kind == '{' || kind == '}'; isBracket {
			if err := s.step(); err != nil {
				return err
			}
			if from < 0 {
				from = int(s.dec.InputOffset()) - 1
			}
		} else {
			v, err := s.dec.ReadValue()
			if err != nil {
				return ErrSyntax
			}
			end := int(s.dec.InputOffset())
			switch {
			case from < 0:
				from = end - len(v)
				if open {
					from++ // the quote
				}
			case len(v) > dataLeast && bytes.HasPrefix(v, []byte(dataPrefix)):
				p.spans = append(p.spans, Span{from, end - len(v)})
				p.marks = append(p.marks, strconv.AppendUint(nil, block.Sum(v), 16))
				from = end
			case isMedia(v):
				p.hasMedia = true
			}
		}
		if s.dec.StackDepth() == depth {
			break
		}
	}
	end := int(s.dec.InputOffset())
	if open {
		end--
	}
	p.spans = append(p.spans, Span{from, max(from, end)})
	p.whole = Span{p.spans[0].From, int(s.dec.InputOffset())}
	if open && s.at(p.whole.To-1) == '"' {
		p.whole.From-- // with its quote
	}
	return nil
}

// isMedia says that a value is the name or the type of a part that is no text, as vLLM takes them.
func isMedia(v jsontext.Value) bool {
	switch string(v) {
	case `"image_url"`, `"image_pil"`, `"image_embeds"`, `"image"`, `"input_image"`, `"audio_url"`, `"audio_embeds"`, `"input_audio"`, `"video_url"`, `"prompt_embeds"`:
		return true
	}
	return false
}

// at is a byte of the body.
func (s *scan) at(i int) byte {
	for _, p := range s.body {
		if i < len(p) {
			return p[i]
		}
		i -= len(p)
	}
	return 0
}

// request puts the parts together.
func (s *scan) request() (*Request, error) {
	r := &s.out
	r.Model, r.CacheSalt = s.model.value, s.salt.value
	r.Tools, r.Prompt = s.places[first].whole, s.places[third].whole
	for _, err := range []error{s.model.err, s.salt.err, s.mediaErr, s.places[first].err, s.places[second].err, s.places[third].err} {
		if err != nil {
			return nil, err
		}
	}
	if r.Prompt == (Span{}) {
		return nil, fmt.Errorf("%w: there is no prompt", ErrShape)
	}
	if s.tokens != nil {
		if len(s.tokens) == 0 {
			return nil, fmt.Errorf("%w: the prompt: want at least one token", ErrShape)
		}
		r.Tokens = s.tokens
		var err error
		if r.Items, err = s.media.Items(len(s.tokens)); err != nil {
			return nil, err
		}
		return r, nil
	}
	r.HasMedia = s.places[third].hasMedia
	for i := range s.places {
		p := &s.places[i]
		for k, span := range p.spans {
			r.Text = span.cut(r.Text, s.body)
			if k < len(p.marks) {
				r.Text = append(r.Text, p.marks[k])
			}
		}
	}
	return r, nil
}
