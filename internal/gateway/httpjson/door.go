package httpjson

import (
	"context"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/kvoracle/kvoracle/gen/openapi"
	"github.com/kvoracle/kvoracle/internal/gateway/httpjson/paths"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Caller is the service behind the door. It may be called concurrently.
type Caller interface {
	// Admit is asked when a call's headers have come, before its body is read. An error refuses the call.
	Admit(ctx context.Context, method string) (context.Context, error)
	// Call calls a unary method with an encoded message and appends the encoded answer to dst. It keeps neither. The
	// context has metadata and peer as gRPC would have set them.
	Call(ctx context.Context, method string, message, dst []byte) ([]byte, error)
	// Refused is told of a call that the door refused by itself after it was admitted.
	Refused(ctx context.Context, method string, err error)
}

// Config bounds a Door.
type Config struct {
	// MaxBody is the largest body in bytes. Must be set.
	MaxBody int
	// MaxHeld is how many bytes of bodies are held at one moment; at least MaxBody.
	MaxHeld int
}

// Door is the HTTP handler. Make it with New.
type Door struct {
	caller Caller
	cfg    Config
	bodies budget
	calls  sync.Pool // of *call
	memory sync.Pool // of *[]byte, for Body
	mux    *http.ServeMux
	below  map[string]http.Handler // by what the path begins with
	origin *http.CrossOriginProtection
}

// method is one row of the table with what it means.
type method struct {
	paths.Path

	isRoute     bool
	in, out     protoreflect.MessageType
	path, query []protoreflect.FieldDescriptor
}

// New makes a door to a caller. More handlers may be mounted beside it, before it serves. The error is a row of
// the table that the services do not have.
func New(caller Caller, cfg Config) (*Door, error) {
	d := &Door{caller: caller, cfg: cfg, mux: http.NewServeMux(), below: make(map[string]http.Handler), origin: http.NewCrossOriginProtection()}
	d.bodies.most = int64(max(cfg.MaxHeld, cfg.MaxBody))
	allowed := make(map[string][]string)
	for _, p := range paths.Paths() {
		m, err := resolve(p)
		if err != nil {
			return nil, fmt.Errorf("httpjson: %s %s: %w", p.Verb, p.Pattern, err)
		}
		d.mux.HandleFunc(p.Verb+" "+p.Pattern, func(w http.ResponseWriter, r *http.Request) { d.serve(w, r, m) })
		allowed[p.Pattern] = append(allowed[p.Pattern], p.Verb)
	}
	d.mux.HandleFunc("GET /v1/openapi.json", func(w http.ResponseWriter, _ *http.Request) { send(w, http.StatusOK, openapi.Document()) })
	allowed["/v1/openapi.json"] = []string{http.MethodGet}
	for pattern, verbs := range allowed {
		allow := strings.Join(verbs, ", ")
		d.mux.HandleFunc(pattern, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Allow", allow)
			Refuse(w, &fault{
				code: codes.Unimplemented, http: http.StatusMethodNotAllowed, reason: reasonVerbUnserved,
				text: "this path takes " + allow,
			})
		})
	}
	d.mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		Refuse(w, &fault{code: codes.NotFound, reason: reasonPathUnknown, text: "no such path; GET /v1/openapi.json lists them"})
	})
	return d, nil
}

// Mount serves a handler under a pattern of http.ServeMux, behind the same protection.
func (d *Door) Mount(pattern string, h http.Handler) { d.mux.Handle(pattern, h) }

// MountBelow serves a handler for all paths that begin with a prefix, behind the same protection. Unlike Mount's it gets them as they
// are, where http.ServeMux answers one with "//" or ".." in it with a redirection.
func (d *Door) MountBelow(prefix string, h http.Handler) { d.below[prefix] = h }

// resolve looks a row's method up.
func resolve(p paths.Path) (*method, error) {
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(p.Method, "/"), "/", "."))
	found, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
	if err != nil {
		return nil, err
	}
	desc, ok := found.(protoreflect.MethodDescriptor)
	if !ok || desc.IsStreamingClient() || desc.IsStreamingServer() {
		return nil, fmt.Errorf("%s is no unary method", name)
	}
	m := &method{Path: p, isRoute: p.Method == kvoraclev1.RouteService_Route_FullMethodName}
	if m.in, err = protoregistry.GlobalTypes.FindMessageByName(desc.Input().FullName()); err != nil {
		return nil, err
	}
	if m.out, err = protoregistry.GlobalTypes.FindMessageByName(desc.Output().FullName()); err != nil {
		return nil, err
	}
	if m.path, err = fieldsOf(desc.Input(), p.Fields()); err != nil {
		return nil, err
	}
	m.query, err = fieldsOf(desc.Input(), p.Query)
	return m, err
}

func fieldsOf(desc protoreflect.MessageDescriptor, names []string) ([]protoreflect.FieldDescriptor, error) {
	var out []protoreflect.FieldDescriptor
	for _, name := range names {
		f := desc.Fields().ByName(protoreflect.Name(name))
		if f == nil || f.Kind() != protoreflect.StringKind {
			return nil, fmt.Errorf("%s has no string field %q", desc.FullName(), name)
		}
		out = append(out, f)
	}
	return out, nil
}

// ServeHTTP implements http.Handler.
func (d *Door) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := d.origin.Check(r); err != nil {
		Refuse(w, &fault{code: codes.PermissionDenied, reason: reasonCrossOrigin, text: "a page of another origin may not call this"})
		return
	}
	for prefix, h := range d.below {
		if strings.HasPrefix(r.URL.Path, prefix) {
			h.ServeHTTP(w, r)
			return
		}
	}
	d.mux.ServeHTTP(w, r)
}

// serve answers one call.
func (d *Door) serve(w http.ResponseWriter, r *http.Request, m *method) {
	ctx, err := d.caller.Admit(Incoming(r), m.Method)
	if err != nil {
		Refuse(w, err)
		return
	}
	c, ok := d.calls.Get().(*call)
	if !ok {
		c = &call{}
	}
	defer func() {
		c.forget()
		d.calls.Put(c)
	}()
	taken, err := d.read(r, m, c)
	defer func() { d.bodies.give(taken) }()
	if err != nil {
		d.caller.Refused(ctx, m.Method, err)
		Refuse(w, err)
		return
	}
	if c.reply, err = d.caller.Call(ctx, m.Method, c.message, c.reply[:0]); err != nil {
		Refuse(w, err)
		return
	}
	if err := c.answer(m, c.reply); err != nil {
		d.caller.Refused(ctx, m.Method, err)
		Refuse(w, err)
		return
	}
	send(w, http.StatusOK, c.text)
}

// read makes the message of a request, in c.message.
func (d *Door) read(r *http.Request, m *method, c *call) (taken int, err error) {
	if m.HasBody {
		if err := checkType(r.Header); err != nil {
			return 0, err
		}
		if c.body, taken, err = d.readBody(r, c.body[:0]); err != nil {
			return taken, err
		}
	}
	if m.isRoute {
		err = c.question()
	} else {
		var query url.Values
		if len(m.query) > 0 {
			query = r.URL.Query()
		}
		err = c.request(m, r.PathValue, func(field string) (string, bool) { return query.Get(field), query.Has(field) })
	}
	if err != nil {
		return taken, badText(err)
	}
	return taken, nil
}

// checkType accepts JSON and bodies that do not say what they are.
func checkType(h http.Header) error {
	if v := h.Get("Content-Encoding"); v != "" && v != "identity" {
		return &fault{code: codes.InvalidArgument, http: http.StatusUnsupportedMediaType, reason: reasonBodyType, text: "bodies are not read compressed"}
	}
	v := h.Get("Content-Type")
	if v == "" || v == "application/json" {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(v); err == nil && (kind == "application/json" || strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return &fault{code: codes.InvalidArgument, http: http.StatusUnsupportedMediaType, reason: reasonBodyType, text: "want Content-Type: application/json"}
}

// Incoming is a request's context as gRPC would have made it: its headers are the call's metadata, and the peer is who
// sent it, with what TLS knows of it.
func Incoming(r *http.Request) context.Context {
	md := make(metadata.MD, len(r.Header)+1)
	for k, v := range r.Header {
		if k = strings.ToLower(k); !slices.Contains([]string{"connection", "te", "transfer-encoding", "upgrade", "keep-alive"}, k) {
			md[k] = v
		}
	}
	md[":authority"] = []string{r.Host}
	return withPeer(r, md)
}

// IncomingCredentials is Incoming without metadata that says nothing of who calls.
func IncomingCredentials(r *http.Request) context.Context {
	md := make(metadata.MD, 1)
	if v, ok := r.Header["Authorization"]; ok {
		md["authorization"] = v
	}
	return withPeer(r, md)
}

func withPeer(r *http.Request, md metadata.MD) context.Context {
	p := &peer.Peer{Addr: remote(r)}
	if r.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{
			State: *r.TLS, CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity},
		}
	}
	return peer.NewContext(metadata.NewIncomingContext(r.Context(), md), p)
}

// remote is the address of whoever sent a request.
func remote(r *http.Request) net.Addr {
	a, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return &net.UnixAddr{Name: r.RemoteAddr, Net: "unix"}
	}
	return net.TCPAddrFromAddrPort(a)
}
