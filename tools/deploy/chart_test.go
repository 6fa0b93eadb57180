package deploy

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

var top = filepath.Join("..", "..")

// kinds are the types that objects are read into. ServiceMonitor belongs to Prometheus's operator, whose types are another
// large dependency for one object of a dozen lines.
var kinds = map[string]func() any{
	"v1 ConfigMap":                  func() any { return new(corev1.ConfigMap) },
	"v1 Service":                    func() any { return new(corev1.Service) },
	"apps/v1 Deployment":            func() any { return new(appsv1.Deployment) },
	"apps/v1 StatefulSet":           func() any { return new(appsv1.StatefulSet) },
	"policy/v1 PodDisruptionBudget": func() any { return new(policyv1.PodDisruptionBudget) },
	"monitoring.coreos.com/v1 ServiceMonitor": func() any {
		return new(map[string]any)
	},
}

// objects reads all objects of a text, by kind; a field that its type does not have is an error, and so is a second object
// of a kind.
func objects(t *testing.T, text string) map[string]any {
	t.Helper()
	out := make(map[string]any)
	for doc := range strings.SplitSeq("\n"+text, "\n---\n") {
		var head struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
		}
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			t.Fatalf("%v in\n%s", err, doc)
		}
		if head.Kind == "" {
			continue
		}
		fresh, ok := kinds[head.APIVersion+" "+head.Kind]
		if !ok {
			t.Fatalf("%s %s has no type here", head.APIVersion, head.Kind)
		}
		o := fresh()
		if err := yaml.UnmarshalStrict([]byte(doc), o); err != nil {
			t.Errorf("%s: %v in\n%s", head.Kind, err, doc)
		}
		if out[head.Kind] != nil {
			t.Errorf("a second %s", head.Kind)
		}
		out[head.Kind] = o
	}
	return out
}

func get[T any](t *testing.T, all map[string]any) *T {
	t.Helper()
	kind := reflect.TypeFor[T]().Name()
	o, ok := all[kind].(*T)
	if !ok {
		t.Fatalf("no %s among %v", kind, slices.Sorted(maps.Keys(all)))
	}
	return o
}

// render is `helm template release deploy/helm/kvoracle` with these values.
func render(t *testing.T, values string) (map[string]any, error) {
	t.Helper()
	loaded, err := loader.Load(filepath.Join(top, "deploy", "helm", "kvoracle"))
	if err != nil {
		t.Fatal(err)
	}
	if err := loaded.Validate(); err != nil {
		t.Fatal(err)
	}
	var given map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	release := common.ReleaseOptions{Name: "blue", Namespace: "llm", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, given, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	e := engine.Engine{Strict: true}
	texts, err := e.Render(loaded, all)
	if err != nil {
		return nil, err
	}
	var manifests []string
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if strings.HasSuffix(name, ".yaml") {
			manifests = append(manifests, texts[name])
		}
	}
	return objects(t, strings.Join(manifests, "\n---\n")), nil
}

// oracle is the program, built once for all tests.
func oracle(t *testing.T) string {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return bin
}

var build = sync.OnceValues(func() (string, error) {
	bin := filepath.Join(folder, "kvoracle")
	cmd := exec.Command("go", "build", "-o", bin, "./server/cmd/kvoracle")
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return bin, nil
})

// folder is where what tests share is built.
var folder string

func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "kvoracle-deploy-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(folder)
	os.Exit(code)
}

// settings has the program read a ConfigMap's settings and a container's arguments.
func settings(t *testing.T, bin string, config *corev1.ConfigMap, args []string) map[string]any {
	t.Helper()
	text := config.Data["kvoracle.yaml"]
	file := filepath.Join(t.TempDir(), "kvoracle.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var with []string
	for _, a := range args {
		if strings.HasPrefix(a, "--config=") {
			a = "--config=" + file
		}
		with = append(with, strings.ReplaceAll(a, "$(POD_NAME)", "blue-kvoracle-0")) // as the kubelet does
	}
	if out, err := exec.Command(bin, append(with, "--version")...).CombinedOutput(); err != nil {
		t.Errorf("the program refuses what it is given: %v\n%s\n%s", err, out, text)
	}
	var out map[string]any
	if err := yaml.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// holdTogether checks what no schema does: selectors meet the pods, ports are the settings' ports, and each file that the
// settings name is in the volume that is for it.
func holdTogether(t *testing.T, bin string, config *corev1.ConfigMap, service *corev1.Service, selector map[string]string, pod *corev1.PodTemplateSpec, claims []string) map[string]any {
	t.Helper()
	c := pod.Spec.Containers[0]
	set := settings(t, bin, config, c.Args)
	for _, labels := range []map[string]string{selector, service.Spec.Selector} {
		for k, v := range labels {
			if pod.Labels[k] != v {
				t.Errorf("selected is %s=%s, which the pods have not: %v", k, v, pod.Labels)
			}
		}
	}
	ports := make(map[string]int32)
	for _, p := range c.Ports {
		ports[p.Name] = p.ContainerPort
	}
	want := map[string]int32{"grpc": 7070, "ops": 7071}
	if set["http-listen"] != nil {
		want["http"] = 7072
	}
	if !maps.Equal(ports, want) {
		t.Errorf("ports are %v, want %v", ports, want)
	}
	for _, p := range service.Spec.Ports {
		if ports[p.TargetPort.String()] != p.Port {
			t.Errorf("the service sends %d to %s", p.Port, p.TargetPort.String())
		}
		delete(ports, p.TargetPort.String())
	}
	if len(ports) > 0 {
		t.Errorf("the service does not lead to %v", ports)
	}

	for key, port := range map[string]string{"listen": ":7070", "ops-listen": ":7071", "http-listen": ":7072"} {
		if address, ok := set[key].(string); ok && !strings.HasSuffix(address, port) || !ok && key != "http-listen" {
			t.Errorf("%s is %v, the port is %s", key, set[key], port)
		}
	}
	for want, p := range map[string]*corev1.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p.HTTPGet.Path != want || p.HTTPGet.Port.String() != "ops" || p.HTTPGet.Scheme != corev1.URISchemeHTTPS {
			t.Errorf("a probe asks %+v, want %s", p.HTTPGet, want)
		}
	}
	// Beyond the drain the server may take ten seconds.
	if grace, most := time.Duration(*pod.Spec.TerminationGracePeriodSeconds)*time.Second, span(t, set["drain-delay"])+span(t, set["drain-timeout"])+10*time.Second; grace < most {
		t.Errorf("the grace is %v, the drain may take %v", grace, most)
	}

	sources := make(map[string]string)
	for _, v := range pod.Spec.Volumes {
		switch {
		case v.ConfigMap != nil:
			sources[v.Name] = "ConfigMap " + v.ConfigMap.Name
		case v.Secret != nil:
			sources[v.Name] = "Secret " + v.Secret.SecretName
		}
	}
	for _, name := range claims {
		sources[name] = "claim " + name
	}
	mounted := make(map[string]string)
	for _, m := range c.VolumeMounts {
		if sources[m.Name] == "" {
			t.Errorf("nothing is mounted at %s: no volume %s", m.MountPath, m.Name)
		}
		mounted[m.MountPath] = sources[m.Name]
	}
	file, _ := strings.CutPrefix(c.Args[0], "--config=")
	if config.Data[filepath.Base(file)] == "" {
		t.Errorf("the settings are in %s, the ConfigMap has %v", file, slices.Sorted(maps.Keys(config.Data)))
	}
	files := map[string]string{
		file: "ConfigMap " + config.Name, "tls-cert": "Secret kvoracle-tls", "tls-key": "Secret kvoracle-tls", "tls-client-ca": "Secret kvoracle-tls",
		"access-file": "Secret kvoracle-access", "nats-ca": "Secret nats", "nats-cert": "Secret nats", "nats-key": "Secret nats",
		"nats-credentials": "Secret nats", "data-dir": "claim data",
	}
	for key, want := range files {
		file := key
		if key[0] != '/' {
			if file, _ = set[key].(string); file == "" {
				continue // not set
			}
		}
		if got := mounted[filepath.Dir(file)]; got != want {
			t.Errorf("%s lies in the volume of %q, want %q", file, got, want)
		}
	}
	for key, value := range set {
		if file, _ := value.(string); filepath.IsAbs(file) && files[key] == "" {
			t.Errorf("%s is %s, and this test does not know in which volume that should be", key, file)
		}
	}
	return set
}

func span(t *testing.T, v any) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(fmt.Sprint(v))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestChart(t *testing.T) {
	bin := oracle(t)
	for name, c := range map[string]struct {
		values string
		kinds  []string
		want   map[string]any // settings
	}{
		"as it is": {
			kinds: []string{"ConfigMap", "Service", "StatefulSet"},
			want:  map[string]any{"tls-client-auth": "optional", "drain-delay": "5s", "nats-url": nil, "data-dir": nil, "http-listen": nil},
		},
		"replicas": {
			values: "{replicas: 3, nats: {urls: [tls://a:4222, tls://b:4222], copies: 3, secretName: nats, clientCertificate: true, credentials: true}}",
			kinds:  []string{"ConfigMap", "PodDisruptionBudget", "Service", "StatefulSet"},
			want:   map[string]any{"nats-url": "tls://a:4222,tls://b:4222", "nats-copies": 3.0, "nats-cert": "/etc/kvoracle/nats/tls.crt"},
		},
		"everything": {
			values: `{replicas: 2, nats: {urls: [nats://a:4222]}, http: {enabled: true}, persistence: {enabled: true, storageClassName: fast},
				monitoring: {enabled: true, labels: {release: p}, bearerTokenSecret: {name: a, key: b}}, priorityClassName: high, podAnnotations: {a: b},
				imagePullSecrets: [{name: x}], env: [{name: OTEL_TRACES_EXPORTER, value: otlp}], nodeSelector: {a: b}, tolerations: [{key: a, operator: Exists}],
				affinity: {podAntiAffinity: {}}, topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: ScheduleAnyway}],
				settings: {insecure: true, max-workers: 4096}}`,
			kinds: []string{"ConfigMap", "PodDisruptionBudget", "Service", "ServiceMonitor", "StatefulSet"},
			want:  map[string]any{"http-listen": "0.0.0.0:7072", "data-dir": "/var/lib/kvoracle/index", "max-workers": 4096.0, "log-format": "json"},
		},
		"a setting of one's own wins": {
			values: "{settings: {listen: '127.0.0.1:7070', tls-client-auth: require}}",
			kinds:  []string{"ConfigMap", "Service", "StatefulSet"},
			want:   map[string]any{"listen": "127.0.0.1:7070", "tls-client-auth": "require"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := render(t, c.values)
			if err != nil {
				t.Fatal(err)
			}
			if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, c.kinds) {
				t.Errorf("objects are %v, want %v", got, c.kinds)
			}
			set := get[appsv1.StatefulSet](t, all)
			var claims []string
			for _, claim := range set.Spec.VolumeClaimTemplates {
				claims = append(claims, claim.Name)
			}
			got := holdTogether(t, bin, get[corev1.ConfigMap](t, all), get[corev1.Service](t, all), set.Spec.Selector.MatchLabels, &set.Spec.Template, claims)
			for key, want := range c.want {
				if got[key] != want {
					t.Errorf("%s is %v, want %v", key, got[key], want)
				}
			}
			hasID := slices.Contains(set.Spec.Template.Spec.Containers[0].Args, "--replica-id=$(POD_NAME)")
			if hasID != (got["nats-url"] != nil) {
				t.Errorf("a replica's id is given: %v, with NATS %v", hasID, got["nats-url"])
			}
		})
	}
}

func TestChartRefusesReplicasThatKnowNothingOfEachOther(t *testing.T) {
	if _, err := render(t, "{replicas: 2}"); err == nil || !strings.Contains(err.Error(), "nats.urls") {
		t.Errorf("two replicas without NATS: %v", err)
	}
}

func TestKustomization(t *testing.T) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(top, "deploy", "kubernetes"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	all := objects(t, string(text))
	if got, want := slices.Sorted(maps.Keys(all)), []string{"ConfigMap", "Deployment", "Service"}; !slices.Equal(got, want) {
		t.Errorf("objects are %v, want %v", got, want)
	}
	d := get[appsv1.Deployment](t, all)
	if image := d.Spec.Template.Spec.Containers[0].Image; image != "kvoracle:latest" {
		t.Errorf("the image is %s", image)
	}
	holdTogether(t, oracle(t), get[corev1.ConfigMap](t, all), get[corev1.Service](t, all), d.Spec.Selector.MatchLabels, &d.Spec.Template, nil)
}
