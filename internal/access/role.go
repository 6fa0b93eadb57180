package access

import (
	"fmt"
	"slices"
	"strings"
)

// Role is what an identity is for. Values can be joined: a set of roles is one Role.
type Role uint8

// The roles.
const (
	// Gateway asks for routes and reports how requests went on.
	Gateway Role = 1 << iota
	// Worker reports what it holds and how busy it is, for itself.
	Worker
	// Operator steers the fleet and sees why decisions were made.
	Operator
	// Monitor reads: the list of workers, metrics, profiles. It sees no request.
	Monitor

	// Nobody has no role.
	Nobody Role = 0
)

// roleNames are in the order of the bits.
func roleNames() []string { return []string{"gateway", "worker", "operator", "monitor"} }

// String names the roles of a set, as in "gateway or operator".
func (r Role) String() string {
	var out []string
	for i, name := range roleNames() {
		if r&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, " or ")
}

func parseRole(name string) (Role, error) {
	for i, n := range roleNames() {
		if n == name {
			return 1 << i, nil
		}
	}
	return Nobody, fmt.Errorf("got the role %q, want one of %s", name, strings.Join(roleNames(), ", "))
}

// Identity is somebody who is known. It never changes.
type Identity struct {
	// Name is for logs and limits. It holds nothing secret.
	Name string
	// Roles are what it may be.
	Roles Role

	own     string
	workers []pattern // nil: its own name
}

// Has says whether it has one of the roles.
func (i *Identity) Has(roles Role) bool { return i.Roles&roles != 0 }

// MayReport says whether it may report for a worker: it has the role, and the worker is its own or one of those its entry
// lists.
func (i *Identity) MayReport(worker string) bool {
	if !i.Has(Worker) {
		return false
	}
	if i.workers == nil {
		return worker == i.own
	}
	for _, p := range i.workers {
		if _, ok := p.match(worker, ""); ok {
			return true
		}
	}
	return false
}

// Workers says which workers it may report for, for people.
func (i *Identity) Workers() string {
	if i.workers == nil {
		return i.own
	}
	out := make([]string, len(i.workers))
	for k, p := range i.workers {
		out[k] = p.String()
	}
	return strings.Join(out, ", ")
}

// Equal says whether two identities are called the same and may do the same.
func (i *Identity) Equal(j *Identity) bool {
	return i.Name == j.Name && i.Roles == j.Roles && i.own == j.own && slices.Equal(i.workers, j.workers) &&
		(i.workers == nil) == (j.workers == nil)
}

// pattern is a text with at most one *.
type pattern struct {
	head, tail string
	isWild     bool
}

func parsePattern(text string) (pattern, error) {
	head, tail, wild := strings.Cut(text, "*")
	switch {
	case text == "" || len(text) > maxName:
		return pattern{}, fmt.Errorf("want 1 to %d bytes", maxName)
	case strings.Contains(tail, "*"):
		return pattern{}, fmt.Errorf("got %q, want at most one *", text)
	}
	return pattern{head, tail, wild}, nil
}

func (p pattern) String() string {
	if p.isWild {
		return p.head + "*" + p.tail
	}
	return p.head
}

// match says whether a text fits, and what stands for the *: at least one byte and none of those in without.
func (p pattern) match(text, without string) (part string, ok bool) {
	if !p.isWild {
		return "", text == p.head
	}
	if len(text) <= len(p.head)+len(p.tail) || !strings.HasPrefix(text, p.head) || !strings.HasSuffix(text, p.tail) {
		return "", false
	}
	part = text[len(p.head) : len(text)-len(p.tail)]
	return part, !strings.ContainsAny(part, without)
}
