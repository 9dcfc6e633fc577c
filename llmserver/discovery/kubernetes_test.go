package discovery

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// onKubernetes runs f in a bubble with a source of the Service "vllm", or as changed.
func onKubernetes(t *testing.T, change func(*Kubernetes), before func(*apiServer), f func(s *apiServer, r *run)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		defer s.close()
		k := Kubernetes{Service: "vllm", Port: "http"}
		if change != nil {
			change(&k)
		}
		before(s)
		r := newRun(t, func(log *slog.Logger) Source { return newKubernetes(s.cluster(), k, log) })
		defer r.stop()
		f(s, r)
	})
}

func nothing(*apiServer) {}

func TestKubernetesServiceFollowsConditions(t *testing.T) {
	onKubernetes(t, nil, nothing, func(s *apiServer, r *run) {
		r.want("")
		s.slice("a", "+p1@10.0.0.1/u1", "+p2@10.0.0.2/u2", "!p3@10.0.0.3/u3")
		r.want("p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2")
		s.slice("b", "+p4@10.0.0.4/u4")
		r.want("p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2 p4=10.0.0.4:8000/u4")
		s.slice("a", "?p1@10.0.0.1/u1", "+p2@10.0.0.2/u2", "-p3@10.0.0.3/u3")
		r.want("-p1=10.0.0.1:8000/u1 -p3=10.0.0.3:8000/u3 p2=10.0.0.2:8000/u2 p4=10.0.0.4:8000/u4")
		s.slice("a", "-p1@10.0.0.1/u1", "+p2@10.0.0.2/u2", "+p3@10.0.0.3/u3")
		s.ofService("other", "x", []discoveryv1.EndpointPort{port("http", 8000)}, discoveryv1.AddressTypeIPv4, "+x@10.0.9.9/u9")
		r.want("-p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2 p3=10.0.0.3:8000/u3 p4=10.0.0.4:8000/u4")
		s.slice("a", "+p2@10.0.0.2/u2", "+p3@10.0.0.3/u3")
		s.remove("endpointslices", "b")
		r.want("p2=10.0.0.2:8000/u2 p3=10.0.0.3:8000/u3")
		s.slice("a", "+p5@10.0.0.2/u5") // another pod at the address
		r.want("p5=10.0.0.2:8000/u5")
		if log := r.logged(); strings.Contains(log, "WARN") {
			t.Errorf("logged\n%s", log)
		}
	})
}

// A pod may be in two slices for a moment, has an address of each family, and its address may have
// been another pod's.
func TestKubernetesServicePodsCountOnce(t *testing.T) {
	onKubernetes(t, nil, func(s *apiServer) {
		s.slice("a", "+p1@10.0.0.1/u1", "-p2@10.0.0.2/u2", "-old@10.0.0.9/u8", "+@10.0.0.7/")
		s.slice("b", "+p1@10.0.0.1/u1", "+new@10.0.0.9/u9", "+p2@10.0.0.2/u2")
		s.sliceWith("c", []discoveryv1.EndpointPort{port("http", 8000)}, discoveryv1.AddressTypeIPv6, "+p1@fd00::1/u1", "+p6@fd00::6/u6")
		s.sliceWith("d", []discoveryv1.EndpointPort{port("http", 8000)}, discoveryv1.AddressTypeFQDN, "+x@example.com/u7")
	}, func(_ *apiServer, r *run) {
		r.want("10.0.0.7:8000=10.0.0.7:8000 new=10.0.0.9:8000/u9 p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2 p6=[fd00::6]:8000/u6")
	})
}

func TestKubernetesServicePort(t *testing.T) {
	for _, c := range []struct{ port, want, problem string }{
		{"http", "p=10.0.0.1:8000/u", ""},
		{"9000", "p=10.0.0.1:9000/u", ""},
		{"", "none", "the pods have more than one port; set port to one of http, metrics"},
		{"grpc", "none", "no pod has the port grpc; set port to one of http, metrics"},
	} {
		onKubernetes(t, func(k *Kubernetes) { k.Port = c.port }, func(s *apiServer) {
			s.sliceWith("a", []discoveryv1.EndpointPort{port("http", 8000), port("metrics", 9000)}, discoveryv1.AddressTypeIPv4, "+p@10.0.0.1/u")
			s.slice("empty")
		}, func(_ *apiServer, r *run) {
			r.want(c.want)
			if log := r.logged(); !strings.Contains(log, c.problem) || (c.problem == "") != (log == "") || (r.source.Err() == nil) != (log == "") {
				t.Errorf("port %q: logged %q", c.port, log)
			}
			time.Sleep(time.Hour) // watches end and begin again
			if log := r.logged(); log != "" {
				t.Errorf("port %q: logged again %q", c.port, log)
			}
		})
	}
	onKubernetes(t, func(k *Kubernetes) { k.Port = "" }, func(s *apiServer) { s.slice("a", "+p@10.0.0.1/u") },
		func(_ *apiServer, r *run) { r.want("p=10.0.0.1:8000/u") })
}

func TestKubernetesSelectorFollowsPods(t *testing.T) {
	http, metrics := corev1.ContainerPort{Name: "http", ContainerPort: 8000}, corev1.ContainerPort{ContainerPort: 9000}
	onKubernetes(t, func(k *Kubernetes) { k.Service, k.Selector = "", "app=vllm" }, nothing, func(s *apiServer, r *run) {
		r.want("")
		s.pod("!p1@10.0.0.1/u1", "", http)
		r.want("")
		s.pod("+p1@10.0.0.1/u1", "", http, metrics)
		s.pod("+p2@10.0.0.2/u2", "17", http)
		s.pod("+p3@10.0.0.3/u3", "many", http)
		s.pod("+p4@/u4", "", http)
		s.pod("xp5@10.0.0.5/u5", "", http)
		r.want("p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2(17) p3=10.0.0.3:8000/u3")
		if log := r.logged(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "not a whole number above 0") || !strings.Contains(log, "pod=p3") {
			t.Errorf("logged\n%s", log)
		}
		s.pod("-p1@10.0.0.1/u1", "", http)
		s.pod("+p2@10.0.0.2/u2", "9999999", http)
		r.want("-p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2(1048575) p3=10.0.0.3:8000/u3")
		s.remove("pods", "p1")
		s.remove("pods", "p3")
		r.want("p2=10.0.0.2:8000/u2(1048575)")
		s.pod("+p2@10.0.0.2/u2", "")
		r.want("none")
		if log := r.logged(); !strings.Contains(log, "the pods declare no port; set port to its number") {
			t.Errorf("logged\n%s", log)
		}
	})
}

// Law 22: what was deleted while the server was away is gone when it is back, and until then the
// last set stays.
func TestKubernetesServerAwayKeepsTheSet(t *testing.T) {
	onKubernetes(t, nil, func(s *apiServer) { s.slice("a", "+p1@10.0.0.1/u1"); s.slice("b", "+p2@10.0.0.2/u2") }, func(s *apiServer, r *run) {
		r.want("p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2")
		r.logged()
		s.setAway(true)
		s.remove("endpointslices", "a")
		time.Sleep(10 * time.Minute)
		r.want("none")
		if log := r.logged(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "connection refused") || r.source.Err() == nil {
			t.Errorf("logged\n%s", log)
		}
		s.setAway(false)
		time.Sleep(16 * time.Second) // the longest backoff
		r.want("p2=10.0.0.2:8000/u2")
		if log := r.logged(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "available again") || r.source.Err() != nil {
			t.Errorf("logged\n%s", log)
		}
	})
}

func TestKubernetesServerAwayAtTheBeginning(t *testing.T) {
	onKubernetes(t, nil, func(s *apiServer) { s.slice("a", "+p1@10.0.0.1/u1"); s.setAway(true) }, func(s *apiServer, r *run) {
		time.Sleep(time.Minute)
		r.want("none")
		s.setAway(false)
		time.Sleep(16 * time.Second)
		r.want("p1=10.0.0.1:8000/u1")
	})
}

func TestKubernetesWatchBrokenOrExpiredIsListedAgain(t *testing.T) {
	for _, gone := range []bool{false, true} {
		onKubernetes(t, nil, func(s *apiServer) { s.slice("a", "+p1@10.0.0.1/u1"); s.slice("b", "+p2@10.0.0.2/u2") }, func(s *apiServer, r *run) {
			r.want("p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2")
			s.cut()
			s.slice("c", "+p3@10.0.0.3/u3")
			time.Sleep(2 * time.Second)
			r.want("p1=10.0.0.1:8000/u1 p2=10.0.0.2:8000/u2 p3=10.0.0.3:8000/u3")
			s.expire("a", gone)
			time.Sleep(5 * time.Second)
			r.want("p2=10.0.0.2:8000/u2 p3=10.0.0.3:8000/u3")
			if log := r.logged(); strings.Contains(log, "too old resource version") || r.source.Err() != nil {
				t.Errorf("logged\n%s", log)
			}
		})
	}
}

// A connection over which nothing comes any more, without an end, is noticed within a minute.
func TestKubernetesHalfOpenWatchIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTLSServer(t)
		defer s.close()
		s.slice("a", "+p1@10.0.0.1/u1")
		r := newRun(t, func(log *slog.Logger) Source {
			return newKubernetes(s.tlsCluster(), Kubernetes{Service: "vllm", Port: "http"}, log)
		})
		defer r.stop()
		r.want("p1=10.0.0.1:8000/u1")
		time.Sleep(10 * time.Minute) // a silent watch is no dead one
		r.want("none")
		s.freeze()
		s.slice("a", "+p2@10.0.0.2/u2")
		time.Sleep(time.Minute)
		r.want("p2=10.0.0.2:8000/u2")
	})
}

func TestKubernetesForbiddenSaysWhatToGrant(t *testing.T) {
	onKubernetes(t, nil, func(s *apiServer) { s.slice("a", "+p1@10.0.0.1/u1"); s.refuse("endpointslices", 403) }, func(s *apiServer, r *run) {
		time.Sleep(5 * time.Minute)
		r.want("none")
		log := r.logged()
		if strings.Count(log, "\n") != 1 || !strings.Contains(log, `grant the verbs list and watch on the resource endpointslices of the API group \"discovery.k8s.io\" in the namespace ns`) {
			t.Errorf("logged\n%s", log)
		}
		s.refuse("endpointslices", 0)
		time.Sleep(16 * time.Second)
		r.want("p1=10.0.0.1:8000/u1")
		s.refuse("endpointslices", 403) // revoked: the last set stays
		s.cut()
		time.Sleep(time.Minute)
		r.want("none")
		for status, said := range map[int]string{401: "does not accept the credentials", 404: "does not serve endpointslices.discovery.k8s.io/v1"} {
			s.refuse("endpointslices", status)
			time.Sleep(90 * time.Second)
			if log := r.logged(); !strings.Contains(log, said) {
				t.Errorf("%d: logged\n%s", status, log)
			}
		}
	})
}

func TestKubernetesServiceReadsCapacityOfPodsIfPermitted(t *testing.T) {
	onKubernetes(t, nil, func(s *apiServer) {
		s.pod("+p1@10.0.0.1/u1", "8")
		s.pod("+p2@10.0.0.2/other", "9") // replaced meanwhile
		s.slice("a", "+p1@10.0.0.1/u1", "+p2@10.0.0.2/u2", "+p3@10.0.0.3/u3")
	}, func(s *apiServer, r *run) {
		r.want("p1=10.0.0.1:8000/u1(8) p2=10.0.0.2:8000/u2 p3=10.0.0.3:8000/u3")
		s.slice("b", "+p4@10.0.0.4/u4")
		r.want("p1=10.0.0.1:8000/u1(8) p2=10.0.0.2:8000/u2 p3=10.0.0.3:8000/u3 p4=10.0.0.4:8000/u4")
		if s.gets != 4 {
			t.Errorf("%d pods were read; want each once", s.gets)
		}
		s.refuse("pods", 500)
		s.pod("+p5@10.0.0.5/u5", "5")
		s.slice("b", "+p5@10.0.0.5/u5")
		r.want("p1=10.0.0.1:8000/u1(8) p2=10.0.0.2:8000/u2 p3=10.0.0.3:8000/u3 p5=10.0.0.5:8000/u5")
		s.refuse("pods", 0)
		time.Sleep(limitRetry + limitTimeout)
		r.want("p1=10.0.0.1:8000/u1(8) p2=10.0.0.2:8000/u2 p3=10.0.0.3:8000/u3 p5=10.0.0.5:8000/u5(5)")
		r.logged()
		s.refuse("pods", 403)
		s.slice("a", "+p6@10.0.0.6/u6")
		s.slice("b", "+p7@10.0.0.7/u7")
		r.want("p6=10.0.0.6:8000/u6 p7=10.0.0.7:8000/u7")
		if log := r.logged(); strings.Count(log, "\n") != 1 || !strings.Contains(log, "grant the verb get on the resource pods") {
			t.Errorf("logged\n%s", log)
		}
	})
}

func TestKubernetesLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t)
		defer s.close()
		k := newKubernetes(s.cluster(), Kubernetes{Service: "vllm", Port: "http"}, slog.New(slog.DiscardHandler))
		s.pod("+p1@10.0.0.1/u1", "8")
		s.slice("a", "+p1@10.0.0.1/u1", "-p2@10.0.0.2/u2")
		if set, err := k.Lookup(t.Context()); err != nil || describe(set) != "-p2=10.0.0.2:8000/u2 p1=10.0.0.1:8000/u1(8)" {
			t.Errorf("got %v, %v", describe(set), err)
		}
		s.refuse("endpointslices", 403)
		if _, err := k.Lookup(t.Context()); err == nil || !strings.Contains(err.Error(), "grant the verbs list") {
			t.Errorf("got %v", err)
		}
		if k.String() != "kubernetes ns/vllm" {
			t.Errorf("the name is %s", k)
		}
	})
}
