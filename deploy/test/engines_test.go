package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
)

// argument returns the value of --name=value among the arguments of a container.
func argument(t *testing.T, c core.Container, name string) string {
	t.Helper()
	for _, a := range c.Args {
		if value, ok := strings.CutPrefix(a, "--"+name+"="); ok {
			return value
		}
	}
	t.Fatalf("%s has no --%s among %v", c.Name, name, c.Args)
	return ""
}

// seconds returns a duration like 300s, or a number of seconds like 45.
func seconds(t *testing.T, text string) int64 {
	t.Helper()
	d, err := time.ParseDuration(strings.TrimSuffix(text, "s") + "s")
	if err != nil {
		t.Fatal(err)
	}
	return int64(d.Seconds())
}

// A pod without an agent is gone from endpoints before vLLM gets SIGTERM, and vLLM has the time for
// its streams.
func TestEngineOfThePlainExampleFinishesItsStreams(t *testing.T) {
	deployment := one[*apps.Deployment](t, sets(t)["vllm"])
	pod := deployment.Spec.Template.Spec
	c := pod.Containers[0]
	drain := c.Lifecycle.PreStop.Sleep.Seconds + seconds(t, argument(t, c, "shutdown-timeout"))
	if grace := *pod.TerminationGracePeriodSeconds; grace < drain+5 || c.Lifecycle.PreStop.Sleep.Seconds < 10 {
		t.Errorf("a grace period of %d s for a drain of %d s", grace, drain)
	}
	if got := deployment.Spec.Template.Annotations["berth-max-ongoing-requests"]; got != argument(t, c, "max-num-seqs") {
		t.Errorf("berth is told a capacity of %s, vLLM has %s", got, argument(t, c, "max-num-seqs"))
	}
}

// Kubernetes ends containers before native sidecars: the agent, through which streams pass, must be
// a container and the engine a sidecar.
func TestEngineOfTheAgentExampleOutlivesItsAgent(t *testing.T) {
	deployment := one[*apps.Deployment](t, sets(t)["vllm-agent"])
	pod := deployment.Spec.Template.Spec
	if len(pod.InitContainers) != 1 || len(pod.Containers) != 1 {
		t.Fatalf("%d init containers and %d containers, want one each", len(pod.InitContainers), len(pod.Containers))
	}
	engine, agent := pod.InitContainers[0], pod.Containers[0]
	if engine.RestartPolicy == nil || *engine.RestartPolicy != core.ContainerRestartPolicyAlways || engine.StartupProbe == nil {
		t.Error("the engine is no native sidecar with a startup probe")
	}
	drain := agent.Lifecycle.PreStop.Sleep.Seconds + seconds(t, argument(t, agent, "drain-timeout")) + seconds(t, argument(t, engine, "shutdown-timeout"))
	if grace := *pod.TerminationGracePeriodSeconds; grace < drain+5 {
		t.Errorf("a grace period of %d s for a drain of %d s", grace, drain)
	}
	if argument(t, agent, "max-ongoing-requests") != argument(t, engine, "max-num-seqs") {
		t.Error("the agent and vLLM have different capacities")
	}
	if url := argument(t, agent, "engine"); url != fmt.Sprintf("http://127.0.0.1:%d", engine.Ports[0].ContainerPort) {
		t.Errorf("the agent connects to %s, the engine has %v", url, engine.Ports)
	}
	if address := argument(t, agent, "address"); address != fmt.Sprintf(":%d", agent.Ports[0].ContainerPort) {
		t.Errorf("the agent listens on %s, its port is %v", address, agent.Ports)
	}
	if p := agent.ReadinessProbe.HTTPGet; p.Path != "/health" || p.Port.String() != agent.Ports[0].Name {
		t.Errorf("readiness is %+v, which does not follow the engine through the agent", p)
	}
	if agent.LivenessProbe.HTTPGet.Path != "/livez" {
		t.Error("the agent is restarted for its engine's faults")
	}
}

// The values of the examples fit the manifests beside them: the Service exists, and berth and the
// agents share a secret.
func TestEngineExamplesFitTheValuesOfTheChart(t *testing.T) {
	all := sets(t)
	for chart, example := range map[string]string{"chart-vllm": "vllm", "chart-vllm-agent": "vllm-agent"} {
		config := one[*core.ConfigMap](t, all[chart]).Data["berth.yaml"]
		service := one[*core.Service](t, all[example])
		if !strings.Contains(config, "service: "+service.Name+"\n") || !strings.Contains(config, "port: "+service.Spec.Ports[0].Name+"\n") {
			t.Errorf("%s finds no service %s with the port %s:\n%s", chart, service.Name, service.Spec.Ports[0].Name, config)
		}
	}
	secret := one[*core.Secret](t, all["vllm-agent"])
	for _, c := range []core.Container{one[*apps.Deployment](t, all["vllm-agent"]).Spec.Template.Spec.Containers[0],
		one[*apps.Deployment](t, all["chart-vllm-agent"]).Spec.Template.Spec.Containers[0]} {
		found := false
		for _, e := range c.Env {
			if e.ValueFrom == nil || e.ValueFrom.SecretKeyRef == nil {
				continue
			}
			_, has := secret.StringData[e.ValueFrom.SecretKeyRef.Key]
			found = found || has && e.ValueFrom.SecretKeyRef.Name == secret.Name
		}
		if !found {
			t.Errorf("%s does not take its secret from %s", c.Name, secret.Name)
		}
	}
}
