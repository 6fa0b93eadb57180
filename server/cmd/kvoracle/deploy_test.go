package main

import (
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kvoracle/kvoracle/server"
)

// What is in deploy/ is held against the program here: its flags, settings, ports and times.

func inDeploy(t *testing.T, name ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(append([]string{"..", "..", ".."}, name...)...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// deployed are the settings of a file in deploy/.
func deployed(t *testing.T, name ...string) *settings {
	t.Helper()
	s, err := parse([]string{"--config", filepath.Join(append([]string{"..", "..", "..", "deploy"}, name...)...)}, environ(nil))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// mostStop is how long a server with these settings takes to end, with some seconds to spare.
func mostStop(s *settings) time.Duration {
	return s.DrainDelay + s.DrainTimeout + 5*time.Second + 5*time.Second
}

// flagsOnly says whether the program takes these arguments.
func flagsOnly(t *testing.T, args []string) {
	t.Helper()
	if err := (&settings{Config: server.DefaultConfig()}).flagSet().Parse(args); err != nil {
		t.Error(err)
	}
}

func TestSystemdUnit(t *testing.T) {
	s := deployed(t, "kvoracle.yaml")
	unit := make(map[string]string)
	for line := range strings.SplitSeq(inDeploy(t, "deploy", "kvoracle.service"), "\n") {
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			unit[key] = value
		}
	}
	command := strings.Fields(unit["ExecStart"])
	if len(command) == 0 || command[0] != "/usr/local/bin/kvoracle" {
		t.Fatalf("it starts %q", unit["ExecStart"])
	}
	flagsOnly(t, command[1:])
	if !strings.Contains(unit["ExecReload"], "-HUP $MAINPID") {
		t.Errorf("it reloads by %q", unit["ExecReload"])
	}
	if stop, err := time.ParseDuration(unit["TimeoutStopSec"] + "s"); err != nil || stop < mostStop(s) {
		t.Errorf("TimeoutStopSec is %v, %v; the drain may take %v", stop, err, mostStop(s))
	}
}

func TestDockerfile(t *testing.T) {
	text := inDeploy(t, "Dockerfile")
	for _, pkg := range regexp.MustCompile(`\./\S+/cmd/\S+`).FindAllString(text, -1) {
		if _, err := os.Stat(filepath.Join("..", "..", "..", pkg)); err != nil {
			t.Error(err)
		}
	}
	for _, want := range []string{"CGO_ENABLED=0", "GOOS=$TARGETOS GOARCH=$TARGETARCH", "USER 65532:65532", "EXPOSE 7070 7071 7072", `ENTRYPOINT ["/usr/local/bin/kvoracle"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s", want)
		}
	}
	var mod struct{ major string }
	if m := regexp.MustCompile(`(?m)^go (1\.\d+)`).FindStringSubmatch(inDeploy(t, "go.mod")); m != nil {
		mod.major = m[1]
	}
	if mod.major == "" || !strings.Contains(text, "golang:"+mod.major+" AS build") {
		t.Errorf("the module wants Go %s", mod.major)
	}
}

// object is as much of Kubernetes' objects as the files use; a key that is not here is a mistake of a file or of this test.
type object struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string
	Metadata   struct {
		Name   string
		Labels map[string]string
	}
	Spec struct {
		Replicas int
		Strategy struct{ Type string }
		Selector yaml.Node
		Template struct {
			Metadata struct{ Labels map[string]string }
			Spec     pod
		}
		ClusterIP                string `yaml:"clusterIP"`
		PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
		Ports                    []struct {
			Name       string
			Port       int
			TargetPort string `yaml:"targetPort"`
		}
	}
}

type pod struct {
	AutomountServiceAccountToken  *bool     `yaml:"automountServiceAccountToken"`
	TerminationGracePeriodSeconds int       `yaml:"terminationGracePeriodSeconds"`
	SecurityContext               yaml.Node `yaml:"securityContext"`
	Containers                    []container
	Volumes                       []struct {
		Name      string
		ConfigMap struct{ Name string } `yaml:"configMap"`
		Secret    struct {
			SecretName string `yaml:"secretName"`
		}
	}
}

type container struct {
	Name, Image string
	Args        []string
	Env         []struct{ Name, Value string }
	Ports       []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	LivenessProbe   probe `yaml:"livenessProbe"`
	ReadinessProbe  probe `yaml:"readinessProbe"`
	Resources       yaml.Node
	SecurityContext yaml.Node `yaml:"securityContext"`
	VolumeMounts    []struct {
		Name      string
		MountPath string `yaml:"mountPath"`
		ReadOnly  bool   `yaml:"readOnly"`
	} `yaml:"volumeMounts"`
}

type probe struct {
	HTTPGet          struct{ Path, Port, Scheme string } `yaml:"httpGet"`
	PeriodSeconds    int                                 `yaml:"periodSeconds"`
	TimeoutSeconds   int                                 `yaml:"timeoutSeconds"`
	FailureThreshold int                                 `yaml:"failureThreshold"`
}

func strictly(t *testing.T, text string, into any) {
	t.Helper()
	d := yaml.NewDecoder(strings.NewReader(text))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatal(err)
	}
}

func TestKubernetes(t *testing.T) {
	s := deployed(t, "kubernetes", "settings.yaml")
	var deployment, service object
	var kustomization struct {
		APIVersion         string `yaml:"apiVersion"`
		Kind               string
		Resources          []string
		ConfigMapGenerator []struct {
			Name  string
			Files []string
		} `yaml:"configMapGenerator"`
		GeneratorOptions map[string]bool `yaml:"generatorOptions"`
		Images           []map[string]string
	}
	strictly(t, inDeploy(t, "deploy", "kubernetes", "deployment.yaml"), &deployment)
	strictly(t, inDeploy(t, "deploy", "kubernetes", "service.yaml"), &service)
	strictly(t, inDeploy(t, "deploy", "kubernetes", "kustomization.yaml"), &kustomization)

	if want := []string{"deployment.yaml", "service.yaml"}; !slices.Equal(kustomization.Resources, want) {
		t.Errorf("the kustomization has %v, want %v", kustomization.Resources, want)
	}
	p := deployment.Spec.Template.Spec
	c := p.Containers[0]
	flagsOnly(t, c.Args)
	if kustomization.Images[0]["name"] != c.Image {
		t.Errorf("the kustomization renames %v, the image is %s", kustomization.Images[0], c.Image)
	}
	for who, selector := range map[string]yaml.Node{"deployment": deployment.Spec.Selector, "service": service.Spec.Selector} {
		labels := make(map[string]string)
		if who == "deployment" {
			var match struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			}
			if err := selector.Decode(&match); err != nil {
				t.Fatal(err)
			}
			labels = match.MatchLabels
		} else if err := selector.Decode(&labels); err != nil {
			t.Fatal(err)
		}
		for k, v := range labels {
			if deployment.Spec.Template.Metadata.Labels[k] != v {
				t.Errorf("the %s selects %s=%s, which the pods have not", who, k, v)
			}
		}
	}

	// Ports: what the settings open, the container names, the service sends to, and probes ask.
	ports := make(map[string]int)
	for _, x := range c.Ports {
		ports[x.Name] = x.ContainerPort
	}
	if !strings.HasSuffix(s.Listen, ":7070") || !strings.HasSuffix(s.OpsListen, ":7071") || ports["grpc"] != 7070 || ports["ops"] != 7071 {
		t.Errorf("ports %v, settings %s and %s", ports, s.Listen, s.OpsListen)
	}
	for _, x := range service.Spec.Ports {
		if ports[x.TargetPort] != x.Port {
			t.Errorf("the service sends %d to %s", x.Port, x.TargetPort)
		}
	}
	for want, x := range map[string]probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if x.HTTPGet.Path != want || x.HTTPGet.Port != "ops" || x.HTTPGet.Scheme != "HTTPS" {
			t.Errorf("a probe asks %+v, want %s", x.HTTPGet, want)
		}
	}

	// Files: each that the settings name lies in a volume that is mounted.
	volumes := make(map[string]string)
	for _, v := range p.Volumes {
		volumes[v.Name] = v.ConfigMap.Name + v.Secret.SecretName
	}
	mounted := make(map[string]string)
	for _, m := range c.VolumeMounts {
		mounted[m.MountPath] = volumes[m.Name]
	}
	config, _ := strings.CutPrefix(c.Args[0], "--config=")
	for file, want := range map[string]string{
		config: kustomization.ConfigMapGenerator[0].Name, s.TLSCert: "kvoracle-tls", s.TLSKey: "kvoracle-tls", s.TLSClientCA: "kvoracle-tls", s.AccessFile: "kvoracle-access",
	} {
		if got := mounted[path.Dir(file)]; got != want {
			t.Errorf("%s lies in the volume of %q, want %q", file, got, want)
		}
	}
	if path.Base(config)+"=settings.yaml" != kustomization.ConfigMapGenerator[0].Files[0] {
		t.Errorf("the ConfigMap has %v", kustomization.ConfigMapGenerator[0].Files)
	}
	if grace := time.Duration(p.TerminationGracePeriodSeconds) * time.Second; grace < mostStop(s) {
		t.Errorf("the grace is %v, the drain may take %v", grace, mostStop(s))
	}
}
