package discovery

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
)

// endpointSlices is the resource of the pods of a Service.
func endpointSlices(c *cluster, service string) resource {
	return resource{
		name:     "endpointslices",
		group:    discoveryv1.GroupName,
		selector: labels.Set{discoveryv1.LabelServiceName: service}.String(),
		client:   c.discovery,
		object:   new(discoveryv1.EndpointSlice),
		list:     func() runtime.Object { return new(discoveryv1.EndpointSliceList) },
		pods:     podsOfSlices,
	}
}

// pods is the resource of the pods with certain labels.
func pods(c *cluster, selector string) resource {
	return resource{
		name:     "pods",
		group:    corev1.GroupName,
		selector: selector,
		client:   c.core,
		object:   new(corev1.Pod),
		list:     func() runtime.Object { return new(corev1.PodList) },
		pods:     podsOfList,
	}
}

// itemsOf returns the objects of a list.
func itemsOf(list runtime.Object) []runtime.Object {
	items, err := meta.ExtractList(list)
	if err != nil {
		panic("BUG: not a list: " + err.Error())
	}
	return items
}

// podsOfSlices returns the pods of EndpointSlices that are ready, or serve until they end. Slices
// of one Service may have different ports while it changes, so only a port that none has is
// missing.
func podsOfSlices(objects []any, port string) (found []pod, missing []string) {
	matched := false
	for _, object := range objects {
		slice, ok := object.(*discoveryv1.EndpointSlice)
		if !ok || len(slice.Endpoints) == 0 || slice.AddressType == discoveryv1.AddressTypeFQDN {
			continue
		}
		number, names := slicePort(slice, port)
		if number == 0 {
			missing = append(missing, names...)
			continue
		}
		matched = true
		for _, e := range slice.Endpoints {
			if p := podOfEndpoint(e); p.ip != "" {
				p.port = number
				found = append(found, p)
			}
		}
	}
	if matched {
		missing = nil
	}
	return found, missing
}

// slicePort returns the number of a slice's port, or 0 and the names of all its ports.
func slicePort(slice *discoveryv1.EndpointSlice, port string) (number int, names []string) {
	for _, p := range slice.Ports {
		if p.Port == nil {
			continue
		}
		n, name := int(*p.Port), deref(p.Name, "")
		if matches(port, name, n, len(slice.Ports)) {
			return n, nil
		}
		names = append(names, cmp.Or(name, strconv.Itoa(n)))
	}
	return 0, names
}

// podOfEndpoint returns an endpoint of an EndpointSlice, without an address if it does not serve.
// A condition that is missing means ready, as serving as it is ready, and not terminating. Ready
// says nothing about a terminating pod: a Service may publish pods that are not ready.
func podOfEndpoint(e discoveryv1.Endpoint) (p pod) {
	ready := deref(e.Conditions.Ready, true)
	serving, terminating := deref(e.Conditions.Serving, ready), deref(e.Conditions.Terminating, false)
	if terminating && !serving || !terminating && !ready || len(e.Addresses) == 0 {
		return pod{}
	}
	p.ip, p.draining = e.Addresses[0], terminating
	if t := e.TargetRef; t != nil && t.Kind == "Pod" {
		p.name, p.uid = t.Name, t.UID
	}
	return p
}

// podsOfList returns the pods that are ready, or serve until they end.
func podsOfList(objects []any, port string) (found []pod, missing []string) {
	for _, object := range objects {
		o, ok := object.(*corev1.Pod)
		if !ok {
			continue
		}
		p := podOf(o)
		if p.ip == "" {
			continue
		}
		var names []string
		if p.port, names = containerPort(o, port); p.port != 0 {
			found = append(found, p)
		}
		missing = append(missing, names...)
	}
	if len(found) > 0 {
		missing = nil
	}
	return found, missing
}

// podOf returns a pod without its port, and without an address if it does not serve.
func podOf(o *corev1.Pod) pod {
	ended := o.Status.Phase == corev1.PodSucceeded || o.Status.Phase == corev1.PodFailed
	ready := slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
	if ended || !ready || o.Status.PodIP == "" {
		return pod{}
	}
	annotation := o.Annotations[limitAnnotation]
	return pod{name: o.Name, uid: o.UID, ip: o.Status.PodIP, draining: o.DeletionTimestamp != nil, annotation: &annotation}
}

// containerPort returns the number of a pod's port, or 0 and the names of all its ports. A number
// need not be declared.
func containerPort(o *corev1.Pod, port string) (number int, names []string) {
	if n, err := strconv.Atoi(port); err == nil {
		return n, nil
	}
	var all []corev1.ContainerPort
	for _, c := range o.Spec.Containers {
		all = append(all, c.Ports...)
	}
	for _, p := range all {
		if matches(port, p.Name, int(p.ContainerPort), len(all)) {
			return int(p.ContainerPort), nil
		}
		names = append(names, cmp.Or(p.Name, strconv.Itoa(int(p.ContainerPort))))
	}
	return 0, append(names, "") // "": so that a pod without any is reported, too
}

// matches reports whether a port with a name and a number, one of several, is the wanted one.
func matches(want, name string, number, of int) bool {
	return want == "" && of == 1 || want != "" && (want == name || want == strconv.Itoa(number))
}

// comparePods sorts pods that are ready first, then those with IPv4 addresses.
func comparePods(a, b pod) int {
	last := func(p pod) int {
		n := 0
		if p.draining {
			n += 2
		}
		if strings.Contains(p.ip, ":") {
			n++
		}
		return n
	}
	return cmp.Or(cmp.Compare(last(a), last(b)), cmp.Compare(a.name, b.name), cmp.Compare(a.uid, b.uid), cmp.Compare(a.ip, b.ip))
}

func deref[T any](p *T, missing T) T {
	if p == nil {
		return missing
	}
	return *p
}
