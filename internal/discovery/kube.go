package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	kvoraclev1 "github.com/kvoracle/kvoracle/gen/kvoracle/v1"
)

// Kube are the endpoints of a Service (EndpointSlices), or of an InferencePool (the pods it selects, on each of its ports). It
// speaks the API's REST form by net/http: three kinds of objects are read, which is not worth client-go's tree of modules.
// The account needs get, list and watch of endpointslices, or of inferencepools and pods, in its namespace.
type Kube struct {
	// API is the server, "https://host:port".
	API string
	// Client makes the calls; see InCluster.
	Client *http.Client
	// Token gives the bearer token; nil: none. Tokens are renewed, so it is asked each time.
	Token func() (string, error)
	// Namespace of the Service or pool. Required.
	Namespace string
	// Service or Pool is its name; exactly one.
	Service, Pool string
	// Port is the name or number of the Service's port; empty: its first.
	Port string
	// Template is what all workers have in common.
	Template *kvoraclev1.WorkerSpec

	watched string // what was listed last: a path with its query
	version string // its resourceVersion
}

const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster fills in what a pod is given: API, Client, Token, and Namespace if it is empty.
func (k *Kube) InCluster() error { return k.inCluster(serviceAccount) }

func (k *Kube) inCluster(account string) error {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return errors.New("KUBERNETES_SERVICE_HOST and _PORT are not set: this is no pod; name the API server")
	}
	ca, err := os.ReadFile(filepath.Join(account, "ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return errors.New("the service account's ca.crt has no certificate")
	}
	k.API = "https://" + net.JoinHostPort(host, port)
	k.Client = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	k.Token = func() (string, error) {
		b, err := os.ReadFile(filepath.Join(account, "token"))
		return strings.TrimSpace(string(b)), err
	}
	if k.Namespace == "" {
		b, err := os.ReadFile(filepath.Join(account, "namespace"))
		if err != nil {
			return err
		}
		k.Namespace = strings.TrimSpace(string(b))
	}
	return nil
}

// Look implements Source.
func (k *Kube) Look(ctx context.Context) ([]Endpoint, error) {
	var found []Endpoint
	var err error
	if k.Pool != "" {
		found, err = k.pool(ctx)
	} else {
		found, err = k.service(ctx)
	}
	if err == nil && len(found) > MaxEndpoints {
		err = fmt.Errorf("got %d endpoints, want at most %d", len(found), MaxEndpoints)
	}
	return found, err
}

// slice is what is read of an EndpointSlice (discovery.k8s.io/v1).
type slice struct {
	Ports []struct {
		Name *string `json:"name"`
		Port *int    `json:"port"`
	} `json:"ports"`
	Endpoints []struct {
		Addresses  []string `json:"addresses"`
		Conditions struct {
			Ready       *bool `json:"ready"`
			Terminating *bool `json:"terminating"`
		} `json:"conditions"`
		TargetRef *struct {
			Name string `json:"name"`
		} `json:"targetRef"`
		Zone *string `json:"zone"`
	} `json:"endpoints"`
}

// port is the slice's port that is meant; 0: it has none.
func (s *slice) port(want string) int {
	for _, p := range s.Ports {
		if p.Port != nil && (want == "" || want == strconv.Itoa(*p.Port) || p.Name != nil && want == *p.Name) {
			return *p.Port
		}
	}
	return 0
}

func (k *Kube) service(ctx context.Context) ([]Endpoint, error) {
	var all []slice
	err := list(ctx, k, "/apis/discovery.k8s.io/v1/namespaces/"+url.PathEscape(k.Namespace)+"/endpointslices",
		"kubernetes.io/service-name="+k.Service, &all)
	if err != nil {
		return nil, err
	}
	byAddress := make(map[string]Endpoint) // an endpoint may be in two slices for a moment
	for i := range all {
		s := &all[i]
		port := s.port(k.Port)
		if port == 0 {
			continue
		}
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			at := net.JoinHostPort(e.Addresses[0], strconv.Itoa(port))
			name := at
			if e.TargetRef != nil && e.TargetRef.Name != "" {
				name = e.TargetRef.Name
			}
			spec := of(k.Template, name, at)
			if e.Zone != nil {
				setLabel(spec, "zone", *e.Zone)
			}
			// Readiness that is not said is taken for given, as the API asks for.
			isOut := e.Conditions.Ready != nil && !*e.Conditions.Ready || e.Conditions.Terminating != nil && *e.Conditions.Terminating
			if before, twice := byAddress[at]; twice && !before.Out {
				continue
			}
			byAddress[at] = Endpoint{Spec: spec, Out: isOut}
		}
	}
	return sorted(byAddress), nil
}

// pod is what is read of a Pod.
type pod struct {
	Metadata struct {
		Name              string  `json:"name"`
		DeletionTimestamp *string `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		PodIP      string `json:"podIP"`
		Phase      string `json:"phase"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	} `json:"status"`
}

func (p *pod) isReady() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

func (k *Kube) pool(ctx context.Context) ([]Endpoint, error) {
	var pool struct {
		Spec struct {
			Selector struct {
				MatchLabels map[string]string `json:"matchLabels"`
			} `json:"selector"`
			TargetPorts []struct {
				Number int `json:"number"`
			} `json:"targetPorts"`
		} `json:"spec"`
	}
	err := k.get(ctx, "/apis/inference.networking.k8s.io/v1/namespaces/"+url.PathEscape(k.Namespace)+"/inferencepools/"+url.PathEscape(k.Pool), &pool)
	if err != nil {
		return nil, err
	}
	if len(pool.Spec.Selector.MatchLabels) == 0 || len(pool.Spec.TargetPorts) == 0 {
		return nil, fmt.Errorf("InferencePool %s has no selector or no ports", k.Pool) // it would select every pod
	}
	var selector []string
	for _, key := range slices.Sorted(maps.Keys(pool.Spec.Selector.MatchLabels)) {
		selector = append(selector, key+"="+pool.Spec.Selector.MatchLabels[key])
	}
	var pods []pod
	if err := list(ctx, k, "/api/v1/namespaces/"+url.PathEscape(k.Namespace)+"/pods", strings.Join(selector, ","), &pods); err != nil {
		return nil, err
	}
	byAddress := make(map[string]Endpoint)
	for i := range pods {
		p := &pods[i]
		if p.Status.PodIP == "" || p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed" {
			continue
		}
		for _, port := range pool.Spec.TargetPorts {
			at := net.JoinHostPort(p.Status.PodIP, strconv.Itoa(port.Number))
			name := p.Metadata.Name
			if len(pool.Spec.TargetPorts) > 1 {
				name += ":" + strconv.Itoa(port.Number) // each port is an endpoint of its own
			}
			byAddress[at] = Endpoint{Spec: of(k.Template, name, at), Out: !p.isReady() || p.Metadata.DeletionTimestamp != nil}
		}
	}
	return sorted(byAddress), nil
}

func sorted(byAddress map[string]Endpoint) []Endpoint {
	out := make([]Endpoint, 0, len(byAddress))
	for _, at := range slices.Sorted(maps.Keys(byAddress)) {
		out = append(out, byAddress[at])
	}
	return out
}

func setLabel(spec *kvoraclev1.WorkerSpec, key, value string) {
	if spec.Labels == nil {
		spec.Labels = make(map[string]string)
	}
	spec.Labels[key] = value
}

// list reads all pages of a collection, and remembers where a watch of it would begin.
func list[T any](ctx context.Context, k *Kube, path, selector string, out *[]T) error {
	query := url.Values{"labelSelector": {selector}, "limit": {"500"}}
	for {
		var page struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
				Continue        string `json:"continue"`
			} `json:"metadata"`
			Items []T `json:"items"`
		}
		if err := k.get(ctx, path+"?"+query.Encode(), &page); err != nil {
			return err
		}
		if *out = append(*out, page.Items...); len(*out) > MaxEndpoints {
			return fmt.Errorf("%s has more than %d objects", path, MaxEndpoints)
		}
		if page.Metadata.Continue == "" {
			query.Del("continue")
			query.Del("limit")
			k.watched, k.version = path+"?"+query.Encode(), page.Metadata.ResourceVersion
			return nil
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// Wait implements Source: a watch says that something has changed, and the next look sees what.
func (k *Kube) Wait(ctx context.Context, most time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if k.watched == "" {
		pause(ctx, most)
		return
	}
	resp, err := k.call(ctx, k.watched+"&watch=1&resourceVersion="+url.QueryEscape(k.version))
	if err == nil {
		defer resp.Body.Close() //nolint:errcheck // it was read
		var one [1]byte
		if _, err = resp.Body.Read(one[:]); err == nil && resp.StatusCode == http.StatusOK {
			pause(ctx, settle) // changes come in swarms
			return
		}
	}
	pause(ctx, most) // a watch that fails at once must not make a busy loop
}

// settle is how long after a change the next look is.
const settle = 100 * time.Millisecond

func (k *Kube) get(ctx context.Context, path string, out any) error {
	resp, err := k.call(ctx, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close() //nolint:errcheck // it was read
	b, err := io.ReadAll(io.LimitReader(resp.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return err
	case len(b) > MaxAnswer:
		return fmt.Errorf("%s: the answer is longer than %d bytes", path, MaxAnswer)
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return json.Unmarshal(b, out)
}

func (k *Kube) call(ctx context.Context, path string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(k.API, "/")+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Accept", "application/json")
	if k.Token != nil {
		token, err := k.Token()
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	client := k.Client
	if client == nil {
		client = http.DefaultClient
	}
	return client.Do(req)
}
