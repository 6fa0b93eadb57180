package direct

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func seeds(f *testing.F) {
	f.Helper()
	for _, s := range []string{
		ask, ask + ask, ask[:30], "GET /ours/%41/../b//c?d=%zz HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
		"POST /ours/ HTTP/1.1\r\nhost: h\r\ncontent-length: 3\r\nx-a:  1 \t\r\nX-A: 2\r\ncookie: a=b\r\n\r\nabcGET /theirs HTTP/1.1\r\nHost: h\r\n\r\n",
		"POST /ours/ HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
		"POST /ours/ HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
		"POST /ours/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: 01\r\n\r\na",
		"HEAD /ours/ HTTP/1.1\r\nHost:\r\nPragma: no-cache\r\n\r\n", "GET /ours/ HTTP/1.0\r\n\r\n",
		"GET http://h/ours/ HTTP/1.1\r\nHost: i\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	} {
		f.Add([]byte(s))
	}
}

// FuzzHead compares with net/http: what is taken for ours means the same to it.
func FuzzHead(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, n := head(data, "/ours/")
		if n == 0 {
			return
		}
		want, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(data)))
		if err != nil {
			t.Fatalf("net/http does not take it: %v", err)
		}
		if want.Close || want.TransferEncoding != nil || want.Trailer != nil {
			t.Errorf("it is not plain: %+v", want)
		}
		type facts struct {
			Method, URL, Path, Query, URI, Proto, Host string
			Length                                     int64
			Header                                     http.Header
		}
		of := func(r *http.Request) facts {
			return facts{r.Method, r.URL.String(), r.URL.Path, r.URL.RawQuery, r.RequestURI, r.Proto, r.Host, r.ContentLength, r.Header}
		}
		if diff := cmp.Diff(of(want), of(r)); diff != "" {
			t.Error(diff)
		}
		rest, err := io.ReadAll(want.Body)
		if err == nil && !bytes.HasPrefix(data[n:], rest) {
			t.Errorf("the body is %q, not what begins %q", rest, data[n:])
		}
	})
}

// FuzzConnection compares with net/http alone: whatever comes by a connection, its answers are the same. Only less than four bytes
// at the end, after a request, are ended by net/http alone without a word.
func FuzzConnection(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<16 {
			return
		}
		r := start(t, nil)
		lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		alone := &http.Server{Handler: http.HandlerFunc(handle), ReadHeaderTimeout: time.Minute}
		go func() { _ = alone.Serve(lis) }()
		defer func() { _ = alone.Close() }()
		want, got := answers(t, lis.Addr().String(), data), answers(t, r.at, data)
		if n := len(want); n > 0 && len(got) == n+1 && got[n].Code == http.StatusBadRequest && got[n].Close {
			got = got[:n]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

type said struct {
	Code  int
	Body  string
	Close bool
}

// answers sends all and reads whatever is answered.
func answers(t *testing.T, at string, data []byte) []said {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Write(data) // it may be refused before all is sent
	_ = conn.(*net.TCPConn).CloseWrite()
	in := bufio.NewReader(conn)
	var out []said
	for len(out) < 1000 {
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			var slow net.Error
			if errors.As(err, &slow) && slow.Timeout() {
				t.Fatal("the connection does not end")
			}
			return out
		}
		b, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil {
			return out
		}
		out = append(out, said{resp.StatusCode, string(b), resp.Close})
	}
	return out
}
