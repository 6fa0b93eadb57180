package discovery

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// DNS are the addresses of a name: "workers.example.org:8000" (A and AAAA), or "_http._tcp.workers.example.org" (SRV, which has
// ports of its own). A worker is named by where it is reached. A name that is not known is an error.
type DNS struct {
	// Name is what is asked for.
	Name string
	// Template is what all workers have in common: the model, the block size.
	Template *kvoraclev1.WorkerSpec
	// Resolver answers; nil: the system's.
	Resolver *net.Resolver
}

// Look implements Source.
func (d *DNS) Look(ctx context.Context) ([]Endpoint, error) {
	r := d.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	var places []string
	if strings.HasPrefix(d.Name, "_") {
		_, records, err := r.LookupSRV(ctx, "", "", d.Name)
		if err != nil {
			return nil, err
		}
		for _, rec := range records {
			found, err := addresses(ctx, r, rec.Target, strconv.Itoa(int(rec.Port)))
			if err != nil {
				return nil, err
			}
			places = append(places, found...)
		}
	} else {
		host, port, err := net.SplitHostPort(d.Name)
		if err != nil {
			return nil, fmt.Errorf("%q: want NAME:PORT, or a name of SRV records that begins with _: %w", d.Name, err)
		}
		if places, err = addresses(ctx, r, host, port); err != nil {
			return nil, err
		}
	}
	slices.Sort(places)
	places = slices.Compact(places)
	if len(places) > MaxEndpoints {
		return nil, fmt.Errorf("%q has %d addresses, want at most %d", d.Name, len(places), MaxEndpoints)
	}
	out := make([]Endpoint, len(places))
	for i, at := range places {
		out[i] = Endpoint{Spec: of(d.Template, at, at)}
	}
	return out, nil
}

// Wait implements Source: DNS tells nobody of changes.
func (d *DNS) Wait(ctx context.Context, most time.Duration) { pause(ctx, most) }

func addresses(ctx context.Context, r *net.Resolver, host, port string) ([]string, error) {
	ips, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, ip := range ips {
		out = append(out, net.JoinHostPort(ip.Unmap().String(), port))
	}
	return out, nil
}

// of is a worker made by a template.
func of(template *kvoraclev1.WorkerSpec, name, address string) *kvoraclev1.WorkerSpec {
	spec := &kvoraclev1.WorkerSpec{}
	if template != nil {
		spec = proto.CloneOf(template)
	}
	spec.WorkerId, spec.Address = name, address
	return spec
}
