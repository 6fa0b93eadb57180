package direct

import (
	"bytes"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
)

// head reads a request's head, which data begins with. n is its length; 0: it is no request of ours, or not all of it is there. Ours
// are those that have nothing but method, path, host and headers in the plainest form that RFC 9112 has for them, and a body
// of a stated length or none: no encoding of the body, no word on the connection, no expectation.
func head(data []byte, prefix string) (r *http.Request, n int) {
	end := bytes.Index(data, []byte("\r\n\r\n"))
	if end < 0 {
		return nil, 0
	}
	first, rest, _ := strings.Cut(string(data[:end+2]), "\r\n")
	method, first, _ := strings.Cut(first, " ")
	target, proto, _ := strings.Cut(first, " ")
	if proto != "HTTP/1.1" || !isMethod(method) || !isTarget(target, prefix) {
		return nil, 0
	}
	u, err := url.ParseRequestURI(target)
	if err != nil {
		return nil, 0
	}
	r = &http.Request{
		Method: method, URL: u, RequestURI: target, Proto: proto, ProtoMajor: 1, ProtoMinor: 1, Header: make(http.Header, 8),
	}
	hasHost, hasLength := false, false
	values := make([]string, 0, 12) // of most requests all
	for rest != "" {
		var line string
		line, rest, _ = strings.Cut(rest, "\r\n")
		name, value, ok := strings.Cut(line, ":")
		if !ok || !isToken(name) || !isText(value) {
			return nil, 0
		}
		value = strings.Trim(value, " \t")
		switch name = textproto.CanonicalMIMEHeaderKey(name); name {
		case "Host":
			if hasHost || !isHost(value) {
				return nil, 0
			}
			hasHost, r.Host = true, value
			continue
		case "Content-Length":
			length, err := strconv.ParseUint(value, 10, 31)
			if hasLength || err != nil || value[0] == '+' {
				return nil, 0
			}
			hasLength, r.ContentLength = true, int64(length)
		case "Transfer-Encoding", "Trailer", "Te", "Connection", "Keep-Alive", "Proxy-Connection", "Upgrade", "Http2-Settings", "Expect", "Pragma":
			return nil, 0
		}
		if all, ok := r.Header[name]; ok {
			r.Header[name] = append(all, value)
			continue
		}
		values = append(values, value)
		r.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	if !hasHost {
		return nil, 0
	}
	return r, end + 4
}

func isMethod(s string) bool {
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return s != "" && s != http.MethodConnect
}

// isTarget says whether a target is a path below the prefix, with its query.
func isTarget(s, prefix string) bool {
	for i := range len(s) {
		if s[i] <= ' ' || s[i] >= 0x7f || s[i] == '#' {
			return false
		}
	}
	return strings.HasPrefix(s, prefix)
}

func isToken(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
		default:
			return false
		}
	}
	return s != ""
}

// isText says whether a value is printable ASCII.
func isText(s string) bool {
	for i := range len(s) {
		if (s[i] < ' ' || s[i] >= 0x7f) && s[i] != '\t' {
			return false
		}
	}
	return true
}

func isHost(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.', c == ':', c == '_':
		default:
			return false
		}
	}
	return s != ""
}
