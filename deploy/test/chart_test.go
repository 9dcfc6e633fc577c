package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// decode parses manifests as an API server with strict field validation does: a field that the type
// does not have, or has twice, is an error.
func decode(t *testing.T, text string) (objects []runtime.Object) {
	t.Helper()
	types := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, monitoring.AddToScheme} {
		if err := add(types); err != nil {
			t.Fatal(err)
		}
	}
	decoder := serializer.NewCodecFactory(types, serializer.EnableStrict).UniversalDeserializer()
	r := utilyaml.NewYAMLReader(newReader(text))
	for {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		if onlyComments(string(document)) {
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Errorf("%v in\n%s", err, document)
			continue
		}
		objects = append(objects, object)
	}
}

// find returns the objects of a type.
func find[T runtime.Object](objects []runtime.Object) (found []T) {
	for _, o := range objects {
		if o, ok := o.(T); ok {
			found = append(found, o)
		}
	}
	return found
}

// one returns the only object of a type.
func one[T runtime.Object](t *testing.T, objects []runtime.Object) T {
	t.Helper()
	found := find[T](objects)
	if len(found) != 1 {
		t.Fatalf("%d objects of type %T, want one", len(found), *new(T))
	}
	return found[0]
}

// sets returns the objects of each set of manifests by name.
func sets(t *testing.T) map[string][]runtime.Object {
	t.Helper()
	rendered, err := manifestSets("..", "inference")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]runtime.Object{}
	for _, s := range rendered {
		all[s.name] = decode(t, s.text)
	}
	return all
}

func TestChartIsCleanForHelmLint(t *testing.T) {
	files, err := filepath.Glob("../examples/values-*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, "testdata/values-everything.yaml", "")
	for _, file := range files {
		values := map[string]any{}
		if file != "" {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.UnmarshalStrict(data, &values); err != nil {
				t.Fatal(err)
			}
		}
		for _, m := range lint.RunAll("../helm/berth", values, "inference").Messages {
			if !strings.Contains(m.Error(), "icon is recommended") {
				t.Errorf("%s: %s", file, m.Error())
			}
		}
	}
}

func TestChartRefusesValuesThatDoNothingOrHarm(t *testing.T) {
	c, err := loader.Load("../helm/berth")
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string]string{
		"a key that does not exist":    "replicas: 3",
		"an address that is not used":  "config: {http: {address: ':9000'}}",
		"no memory limit":              "resources: {limits: null}",
		"a privileged port":            "containerPort: 80",
		"a model that is no label":     "engineAutoscaling: [{model: 'a/b', target: {name: x}, perReplica: '4', maxReplicas: 2}]",
		"a digest that is none":        "image: {digest: latest}",
		"engines without a maximum":    "engineAutoscaling: [{model: a, target: {name: x}, perReplica: '4'}]",
		"a type of service not served": "service: {type: ExternalName}",
	} {
		var v map[string]any
		if err := yaml.Unmarshal([]byte(values), &v); err != nil {
			t.Fatal(err)
		}
		if _, err := renderValues(c, "inference", v); err == nil {
			t.Errorf("%s: %s is rendered", name, values)
		}
	}
}

// Every kind of object that the chart has is rendered by some example, and all are strictly valid.
func TestChartRendersObjectsOfEveryKind(t *testing.T) {
	kinds := map[string]bool{}
	for name, objects := range sets(t) {
		names := map[string]bool{}
		for _, o := range objects {
			kind := o.GetObjectKind().GroupVersionKind().Kind
			m := o.(meta.Object)
			kinds[kind] = true
			if id := kind + "/" + m.GetNamespace() + "/" + m.GetName(); names[id] {
				t.Errorf("%s has %s twice", name, id)
			} else {
				names[id] = true
			}
		}
	}
	want := []string{"ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding",
		"Secret", "Service", "ServiceAccount", "ServiceMonitor"}
	if got := slices.Sorted(maps.Keys(kinds)); !slices.Equal(got, want) {
		t.Errorf("rendered %v, want %v", got, want)
	}
}

// Services, budgets, policies and monitors select the pods, and ports are found by their names.
func TestChartSelectorsAndPortsMatchThePods(t *testing.T) {
	for name, objects := range sets(t) {
		pods := one[*apps.Deployment](t, objects).Spec.Template
		ports := map[string]bool{}
		for _, c := range slices.Concat(pods.Spec.InitContainers, pods.Spec.Containers) {
			for _, p := range c.Ports {
				ports[p.Name] = true
			}
		}
		selects := func(what string, s labels.Selector, of map[string]string) {
			if s.Empty() || !s.Matches(labels.Set(of)) {
				t.Errorf("%s: the %s selects %v", name, what, s)
			}
		}
		selector := func(s *meta.LabelSelector) labels.Selector {
			parsed, err := meta.LabelSelectorAsSelector(s)
			if err != nil {
				t.Fatal(err)
			}
			return parsed
		}
		for _, s := range find[*core.Service](objects) {
			selects("service", labels.SelectorFromSet(s.Spec.Selector), pods.Labels)
			for _, p := range s.Spec.Ports {
				if !ports[p.TargetPort.String()] {
					t.Errorf("%s: the service has the port %v, the pods have %v", name, p.TargetPort, ports)
				}
			}
			for _, m := range find[*monitoring.ServiceMonitor](objects) {
				selects("monitor", selector(&m.Spec.Selector), s.Labels)
			}
		}
		for _, b := range find[*policy.PodDisruptionBudget](objects) {
			selects("budget", selector(b.Spec.Selector), pods.Labels)
		}
		for _, n := range find[*networking.NetworkPolicy](objects) {
			selects("network policy", selector(&n.Spec.PodSelector), pods.Labels)
			for _, p := range n.Spec.Ingress[0].Ports {
				if !ports[p.Port.String()] {
					t.Errorf("%s: the network policy opens %v, the pods have %v", name, p.Port, ports)
				}
			}
		}
		for _, c := range pods.Spec.TopologySpreadConstraints {
			selects("spread constraint", selector(c.LabelSelector), pods.Labels)
		}
	}
}

// berth may read what discovery watches, in the right namespaces, and has no token without it.
func TestChartGrantsWhatDiscoveryWatches(t *testing.T) {
	all := sets(t)
	for name, namespaces := range map[string][]string{
		"chart":            nil,
		"chart-vllm":       {"inference"},
		"chart-vllm-agent": {"inference"},
		"chart-everything": {"default", "engines"},
	} {
		objects := all[name]
		pod := one[*apps.Deployment](t, objects).Spec.Template.Spec
		if token := *pod.AutomountServiceAccountToken; token != (len(namespaces) > 0) {
			t.Errorf("%s: pods have a token: %v", name, token)
		}
		var granted []string
		for _, role := range find[*rbac.Role](objects) {
			granted = append(granted, role.Namespace)
			want := []rbac.PolicyRule{
				{APIGroups: []string{discovery.GroupName}, Resources: []string{"endpointslices"}, Verbs: []string{"get", "list", "watch"}},
				{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get", "list", "watch"}},
			}
			if fmt.Sprint(role.Rules) != fmt.Sprint(want) {
				t.Errorf("%s grants %v", name, role.Rules)
			}
		}
		if !slices.Equal(granted, namespaces) {
			t.Errorf("%s grants in %v, want %v", name, granted, namespaces)
		}
		for _, b := range find[*rbac.RoleBinding](objects) {
			if b.Subjects[0].Name != pod.ServiceAccountName || b.Subjects[0].Namespace != "inference" || !slices.Contains(granted, b.Namespace) {
				t.Errorf("%s binds %+v", name, b)
			}
		}
	}
}

// A pod has the time that its drain takes, and every container may write nothing and become nobody
// else.
func TestChartPodsAreHardenedAndHaveTimeToDrain(t *testing.T) {
	for name, grace := range map[string]int64{"chart": 15 + 600, "chart-vllm": 15 + 600, "chart-vllm-agent": 15 + 600, "chart-everything": 8 + 300} {
		pod := one[*apps.Deployment](t, sets(t)[name]).Spec.Template.Spec
		if got := *pod.TerminationGracePeriodSeconds; got < grace+10 || got > grace+30 {
			t.Errorf("%s: a grace period of %d s, want a little more than %d", name, got, grace)
		}
		c := pod.Containers[0]
		s := c.SecurityContext
		if !*pod.SecurityContext.RunAsNonRoot || *pod.SecurityContext.RunAsUser != 65532 || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
			!slices.Equal(s.Capabilities.Drop, []core.Capability{"ALL"}) || pod.SecurityContext.SeccompProfile.Type != core.SeccompProfileTypeRuntimeDefault {
			t.Errorf("%s: %+v, %+v", name, pod.SecurityContext, s)
		}
		if c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/livez" {
			t.Errorf("%s: probes %v, %v", name, c.ReadinessProbe.HTTPGet, c.LivenessProbe.HTTPGet)
		}
		if saturated := time.Duration(c.LivenessProbe.PeriodSeconds*c.LivenessProbe.FailureThreshold) * time.Second; saturated < time.Minute {
			t.Errorf("%s: restarted after %v without an answer", name, saturated)
		}
		for _, m := range c.VolumeMounts {
			if m.Name == "config" && m.SubPath != "" {
				t.Errorf("%s: the configuration is mounted by subPath, so it never changes", name)
			}
		}
	}
}

// The flags of every container that runs berth exist, and berth accepts every configuration.
func TestChartStartsBerthWithFlagsAndFilesThatItAccepts(t *testing.T) {
	binary := buildBerth(t)
	checked := 0
	for name, objects := range sets(t) {
		pod := one[*apps.Deployment](t, objects).Spec.Template.Spec
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			if strings.HasPrefix(c.Image, "berth") {
				checkFlags(t, binary, name, c.Args)
				checked++
			}
		}
		for _, m := range find[*core.ConfigMap](objects) {
			if out, err := check(t, binary, m.Data["berth.yaml"]); err != nil {
				t.Errorf("%s: %s", name, out)
			}
		}
	}
	if checked != 5 {
		t.Errorf("%d containers run berth, want 5", checked)
	}
}

// check runs berth check on a configuration. Certificates, which a Secret brings, are made up.
func check(t *testing.T, binary, config string) (problems string, err error) {
	t.Helper()
	dir := t.TempDir()
	if strings.Contains(config, "/etc/tls/") {
		writeCertificate(t, dir)
	}
	file := filepath.Join(dir, "berth.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(config, "/etc/tls", dir)), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(binary, "check", "--config", file).CombinedOutput()
	return string(out), err
}

// Engines are scaled by metrics that exist: of berth, or recorded by the rules.
func TestChartScalesEnginesByMetricsThatExist(t *testing.T) {
	known := maps.Clone(documentedMetrics(t))
	for _, r := range rules(t) {
		known[r.Record] = nil
	}
	for _, h := range find[*autoscaling.HorizontalPodAutoscaler](sets(t)["chart-everything"]) {
		for _, m := range h.Spec.Metrics {
			if m.External == nil {
				continue
			}
			if _, ok := known[m.External.Metric.Name]; !ok {
				t.Errorf("%s scales by %s, which does not exist", h.Name, m.External.Metric.Name)
			}
		}
	}
}
