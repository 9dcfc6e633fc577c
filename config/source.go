package config

import (
	"cmp"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// DNS describes replicas found by DNS lookups. They are reached by plain HTTP.
type DNS struct {
	Name      string        // completed by the search domains of resolv.conf unless it ends in a dot
	Type      string        // one of [DNSTypes]
	Port      int           // of the replicas; 0 for SRV, whose records have it
	Server    string        // ip:port of the DNS server; empty: those of resolv.conf
	Period    time.Duration // between lookups; 0: by the TTL of the records
	Keep      time.Duration // how long a name without records must be without before its replicas go
	APIKeyEnv string        // as in [Replica]
}

// DNSTypes are the values of DNS.Type.
var DNSTypes = []string{"A", "AAAA", "SRV"}

// Kubernetes describes replicas that are pods: those of a Service, or those with certain labels.
// They are reached by plain HTTP. Exactly one of Service and Selector is set.
type Kubernetes struct {
	Service    string
	Selector   string // label selector
	Port       string // name or number; empty: the only one
	Namespace  string // empty: that of the process, or of the kubeconfig's context
	Kubeconfig string // path; empty: the service account of the pod in which the process runs
	APIKeyEnv  string // as in [Replica]
}

// HasSource reports whether replicas of m come from a source beside the configuration, so that
// their number may change at any time and be zero.
func (m *Model) HasSource() bool { return m.File != "" || m.DNS != nil || m.Kubernetes != nil }

// sourceKeys are the keys of a model that name its replicas. At least one of them is required;
// simulated excludes the others.
var sourceKeys = []string{"replicas", "file", "dns", "kubernetes", "simulated"}

// checkSources reports a model without replicas, or with simulated and other replicas.
func (r *reader) checkSources(n *node) {
	simulated, replicas := n.get("simulated"), n.get("replicas")
	first := slices.IndexFunc(sourceKeys, func(key string) bool { return n.get(key) != nil })
	switch {
	case first < 0:
		r.problemf(n.at, "this model has no replicas; list them under replicas, name a source of them (file, dns or kubernetes), or add simulated: {}")
	case simulated != nil && sourceKeys[first] != "simulated":
		r.problemf(simulated.key, "%s and simulated are both set; keep one of them", sourceKeys[first])
	case replicas != nil && replicas.kind == sequence && len(replicas.nodes) == 0:
		r.problemf(replicas.at, "replicas is empty; list at least one replica")
	}
}

// dns reads a source of replicas found by DNS.
func (r *reader) dns(m *Model) func(*node) {
	return func(n *node) {
		d := defaultDNS()
		m.DNS = &d
		r.object(r.dnsConfig(&d))(n)
		if n.kind != mapping {
			return
		}
		port := n.get("port")
		switch {
		case n.get("name") == nil:
			r.problemf(n.at, "dns has no name; set the name to look up")
		case d.Type == "SRV" && port != nil:
			r.problemf(port.key, "port has no effect with type SRV, whose records name the port; remove it")
		case d.Type != "SRV" && port == nil:
			r.problemf(n.at, "dns has no port; set the port of the replicas, or type: SRV to take it from the records")
		}
	}
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

// hostName reads a name for DNS lookups.
func (r *reader) hostName(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || len(n.text) > 253 || !hostName.MatchString(n.text) {
			r.wrongValue(n, "a DNS name, like vllm.example.com")
			return
		}
		*dst = n.text
	}
}

// dnsServer reads the address of a DNS server, by default at port 53.
func (r *reader) dnsServer(dst *string) func(*node) {
	return func(n *node) {
		host, port, err := net.SplitHostPort(n.text)
		if err != nil {
			host, port = n.text, "53"
		}
		address, err := netip.ParseAddr(host)
		if n.kind != text || err != nil || !isPort(port, 1) {
			r.wrongValue(n, "an IP address, like 10.0.0.53 or 10.0.0.53:53")
			return
		}
		*dst = net.JoinHostPort(address.String(), port)
	}
}

// kubernetes reads a source of replicas that are pods.
func (r *reader) kubernetes(m *Model) func(*node) {
	return func(n *node) {
		k := new(Kubernetes)
		m.Kubernetes = k
		r.object(r.kubernetesConfig(k))(n)
		if n.kind != mapping {
			return
		}
		switch service, selector := n.get("service"), n.get("selector"); {
		case service == nil && selector == nil:
			r.problemf(n.at, "kubernetes has neither service nor selector; set one of them")
		case service != nil && selector != nil:
			r.problemf(cmp.Or(selector.key, selector.at), "service and selector are both set; keep one of them")
		}
	}
}

var kubernetesName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// kubernetesName reads the name of a Service or a namespace.
func (r *reader) kubernetesName(dst *string) func(*node) {
	return func(n *node) {
		if n.kind != text || !kubernetesName.MatchString(n.text) {
			r.wrongValue(n, "a name of Kubernetes: lower case letters, digits and -")
			return
		}
		*dst = n.text
	}
}

// selector reads a label selector.
func (r *reader) selector(dst *string) func(*node) {
	return func(n *node) {
		var written string
		if r.label(&written)(n); written == "" {
			return
		}
		if r.checks.Selector != nil {
			if err := r.checks.Selector(written); err != nil {
				r.wrongValue(n, "a label selector, like app=vllm,tier!=test: "+err.Error())
				return
			}
		}
		*dst = written
	}
}

// portOrName reads the number or the name of a port.
func (r *reader) portOrName(dst *string) func(*node) {
	return func(n *node) {
		switch {
		case n.kind == number && isPort(strconv.FormatFloat(n.number, 'f', -1, 64), 1):
			*dst = strconv.Itoa(int(n.number))
		case n.kind == text && kubernetesName.MatchString(n.text) && (!isDigits(n.text) || isPort(n.text, 1)):
			*dst = n.text
		default:
			r.wrongValue(n, "the name of a port, or a number from 1 to 65535")
		}
	}
}

func isDigits(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

// ParseReplicas parses the file of [Model.File], a list of replicas in the form of the model's own;
// name is the file name in problems. A replica without max_ongoing_requests has 0, which means that
// of the model. The error is a [Problems] with all problems.
func ParseReplicas(data []byte, name string) ([]Replica, error) {
	r := newReader(Checks{}, nil)
	r.ifEmpty = "list the replicas, or write [] for none"
	m := new(Model)
	if root := r.parseDocument(data, name); root != nil {
		r.list(r.modelReplica(m))(root.withName("replicas", root.at))
	}
	if len(r.problems) > 0 {
		return nil, r.problems.sorted()
	}
	return m.Replicas, nil
}
