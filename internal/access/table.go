package access

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"go.yaml.in/yaml/v3"
)

const (
	// MaxFile bounds the file, in bytes.
	MaxFile = 1 << 20
	// MaxToken bounds a bearer token, in bytes; a longer one is nobody's.
	MaxToken = 512

	maxEntries = 16_384
	maxName    = 256
	leastToken = 16
)

// Table is one access file. It never changes. The zero value knows nobody.
type Table struct {
	tokens map[Digest]*holder
	names  map[string]*Identity // by certificate name
	wild   []wildcard
	count  int
}

// Digest is the SHA-256 of a token. It is no secret worth the name: a token cannot be made of it.
type Digest [sha256.Size]byte

// holder is whose token has a digest.
type holder struct {
	digest Digest
	id     *Identity
}

// wildcard is an entry for certificates whose names fit a pattern.
type wildcard struct {
	pattern pattern
	isURI   bool
	entry   *Identity
}

// entry is one identity as the file has it.
type entry struct {
	Name         string   `yaml:"name"`
	Roles        []string `yaml:"roles"`
	Workers      []string `yaml:"workers"`
	Tokens       []string `yaml:"tokens"`
	TokensSHA256 []string `yaml:"tokens_sha256"`
	Certificates []string `yaml:"certificates"`
}

// Parse reads an access file. Its errors name entries and never quote a token.
func Parse(data []byte) (*Table, error) {
	if len(data) > MaxFile {
		return nil, fmt.Errorf("want at most %d bytes", MaxFile)
	}
	var file struct {
		Identities []entry `yaml:"identities"`
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	// The decoder's own text may quote a value, and the value may be a token.
	if err := dec.Decode(&file); errors.Is(err, io.EOF) {
		return nil, errors.New("it is empty: want identities")
	} else if err != nil {
		return nil, fmt.Errorf("want YAML with a list of identities, each with name, roles, workers, tokens, tokens_sha256, certificates%s", lines(err))
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one YAML document")
	}
	if n := len(file.Identities); n == 0 || n > maxEntries {
		return nil, fmt.Errorf("got %d identities, want 1 to %d", n, maxEntries)
	}
	t := &Table{tokens: make(map[Digest]*holder), names: make(map[string]*Identity)}
	known := make(map[string]bool)
	var errs []error
	for i := range file.Identities {
		e := &file.Identities[i]
		if err := t.add(e, known); err != nil {
			errs = append(errs, fmt.Errorf("identities[%d] (%.64q): %w", i, e.Name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return t, nil
}

// lines finds where a decoder's complaints are from, without what they quote.
func lines(err error) string {
	var out []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		if _, rest, ok := strings.Cut(line, "line "); ok {
			n, _, _ := strings.Cut(rest, ":")
			out = append(out, "line "+n)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return ": see " + strings.Join(out[:min(len(out), 8)], ", ")
}

func (t *Table) add(e *entry, known map[string]bool) error {
	switch {
	case e.Name == "" || len(e.Name) > maxName || strings.ContainsFunc(e.Name, func(r rune) bool { return r < ' ' }):
		return fmt.Errorf("name: want 1 to %d bytes without control characters", maxName)
	case known[e.Name]:
		return errors.New("name: it comes twice")
	case len(e.Roles) == 0:
		return errors.New("roles: want at least one of " + strings.Join(roleNames(), ", "))
	case len(e.Tokens)+len(e.TokensSHA256)+len(e.Certificates) == 0:
		return errors.New("want tokens, tokens_sha256 or certificates: nobody could be it")
	}
	known[e.Name] = true
	id := &Identity{Name: e.Name, own: e.Name}
	for _, name := range e.Roles {
		r, err := parseRole(name)
		if err != nil {
			return fmt.Errorf("roles: %w", err)
		}
		id.Roles |= r
	}
	if e.Workers != nil && !id.Has(Worker) {
		return errors.New("workers: want the role worker, or none of these")
	}
	if e.Workers != nil {
		id.workers = make([]pattern, 0, len(e.Workers))
	}
	for _, w := range e.Workers {
		p, err := parsePattern(w)
		if err != nil {
			return fmt.Errorf("workers: %w", err)
		}
		id.workers = append(id.workers, p)
	}
	if err := t.addTokens(e, id); err != nil {
		return err
	}
	for _, c := range e.Certificates {
		if err := t.addCertificate(c, id); err != nil {
			return fmt.Errorf("certificates: %w", err)
		}
	}
	t.count++
	return nil
}

func (t *Table) addTokens(e *entry, id *Identity) error {
	for i, token := range e.Tokens {
		if len(token) < leastToken || len(token) > MaxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return fmt.Errorf("tokens[%d]: want %d to %d printable ASCII bytes without spaces", i, leastToken, MaxToken)
		}
		if err := t.know(sha256.Sum256([]byte(token)), id); err != nil {
			return fmt.Errorf("tokens[%d]: %w", i, err)
		}
	}
	for i, text := range e.TokensSHA256 {
		var d Digest
		if n, err := hex.Decode(d[:], []byte(text[:min(len(text), 2*len(d))])); err != nil || n != len(d) || len(text) != 2*len(d) {
			return fmt.Errorf("tokens_sha256[%d]: want %d hexadecimal digits", i, 2*len(d))
		}
		if err := t.know(d, id); err != nil {
			return fmt.Errorf("tokens_sha256[%d]: %w", i, err)
		}
	}
	return nil
}

func (t *Table) know(d Digest, id *Identity) error {
	if other := t.tokens[d]; other != nil {
		return fmt.Errorf("%.64q has the same token", other.id.Name)
	}
	t.tokens[d] = &holder{d, id}
	return nil
}

func (t *Table) addCertificate(name string, id *Identity) error {
	if !isURI(name) {
		name = strings.ToLower(name)
	}
	p, err := parsePattern(name)
	switch {
	case err != nil:
		return err
	case p.isWild:
		if p.head+p.tail == "" {
			return errors.New("a * alone would let every certificate in")
		}
		t.wild = append(t.wild, wildcard{p, isURI(name), id})
		return nil
	}
	if other := t.names[name]; other != nil {
		return fmt.Errorf("%.64q has %q too", other.Name, name)
	}
	t.names[name] = id
	return nil
}

// Len is how many entries the file had; of no table, none.
func (t *Table) Len() int {
	if t == nil {
		return 0
	}
	return t.count
}

// Token finds whose token it is, and its digest; nil: nobody's, as every one that is too long.
func (t *Table) Token(token string) (*Identity, Digest) {
	var buf [MaxToken]byte
	if len(token) > len(buf) {
		return nil, Digest{}
	}
	d := Digest(sha256.Sum256(buf[:copy(buf[:], token)]))
	return t.ByDigest(d), d
}

// ByDigest finds whose token has this digest; nil: nobody's. The map's own comparison may end early, but what that tells
// of is a digest and not a token.
func (t *Table) ByDigest(d Digest) *Identity {
	h := t.tokens[d]
	if h == nil || subtle.ConstantTimeCompare(h.digest[:], d[:]) != 1 {
		return nil
	}
	return h.id
}

// Certificate finds who shows a certificate that was verified; nil: nobody.
func (t *Table) Certificate(leaf *x509.Certificate) *Identity {
	if leaf == nil {
		return nil
	}
	for _, u := range leaf.URIs {
		if name := u.String(); isURI(name) { // one without a scheme could pass for a DNS name
			if id := t.named(name); id != nil {
				return id
			}
		}
	}
	for _, name := range leaf.DNSNames {
		if !isURI(name) {
			if id := t.named(strings.ToLower(name)); id != nil {
				return id
			}
		}
	}
	return nil
}

// isURI tells the two sorts of names apart: a DNS name has no colon, a URI with a scheme has one.
func isURI(name string) bool { return strings.Contains(name, ":") }

func (t *Table) named(name string) *Identity {
	if id := t.names[name]; id != nil {
		return id
	}
	without := "."
	if isURI(name) {
		without = "/"
	}
	for _, w := range t.wild {
		if w.isURI != isURI(name) {
			continue
		}
		if part, ok := w.pattern.match(name, without); ok {
			return &Identity{Name: w.entry.Name + "/" + part, Roles: w.entry.Roles, own: part, workers: w.entry.workers}
		}
	}
	return nil
}
