package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// apiServer is the part of a Kubernetes API server that lists, watches and gets EndpointSlices and
// Pods of the namespace "ns". Connections are pipes, so that it runs in a bubble.
type apiServer struct {
	t      *testing.T
	server *http.Server

	mu        sync.Mutex
	conns     []net.Conn
	away      bool              // refuses connections
	refusal   map[string]int    // status by resource, in place of a response
	objects   map[string]object // by resource/name
	version   int
	compacted int  // watches from an earlier version are expired
	gone      bool // they get status 410, not an event
	ending    bool // running watches end
	events    []event
	changed   chan struct{} // closed and replaced at each change
	lists     int
	gets      int
	serve     func(net.Conn)
}

type object struct {
	resource, name string
	labels         map[string]string
	value          any
	version        int
}

type event struct {
	kind    string
	object  object
	version int
}

func newAPIServer(t *testing.T) *apiServer {
	s := &apiServer{t: t, objects: make(map[string]object), refusal: make(map[string]int), changed: make(chan struct{}), version: 100}
	l := &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	s.server = &http.Server{Handler: s}
	s.serve = l.deliver
	go s.server.Serve(l)
	return s
}

type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
}

// deliver hands over a new connection, which is closed if the server does not accept any more.
func (l *pipeListener) deliver(c net.Conn) {
	select {
	case l.conns <- c:
	case <-l.closed:
		c.Close()
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}
func (l *pipeListener) Close() error   { close(l.closed); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

// cluster returns the cluster of this server.
func (s *apiServer) cluster() *cluster {
	s.t.Helper()
	c, err := connect(&rest.Config{Host: "http://api", Dial: s.dial}, "ns")
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *apiServer) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	}
	ours, theirs := net.Pipe()
	s.conns = append(s.conns, ours)
	go s.serve(ours)
	return theirs, nil
}

// setAway makes the server unreachable, all connections broken, or reachable again.
func (s *apiServer) setAway(away bool) {
	s.mu.Lock()
	s.away = away
	s.mu.Unlock()
	s.cut()
}

// cut breaks all connections.
func (s *apiServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.conns {
		c.Close()
	}
	s.conns = nil
}

func (s *apiServer) close() {
	s.server.Close()
	s.setAway(true)
}

// put adds or replaces an object.
func (s *apiServer) put(resource, name string, labels map[string]string, value func(metav1.ObjectMeta) any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o := object{resource, name, labels, nil, s.version}
	o.value = value(metav1.ObjectMeta{Name: name, Namespace: "ns", Labels: labels, ResourceVersion: strconv.Itoa(s.version)})
	kind := "ADDED"
	if _, ok := s.objects[resource+"/"+name]; ok {
		kind = "MODIFIED"
	}
	s.objects[resource+"/"+name] = o
	s.note(event{kind, o, s.version})
}

func (s *apiServer) remove(resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o := s.objects[resource+"/"+name]
	delete(s.objects, resource+"/"+name)
	s.note(event{"DELETED", o, s.version})
}

func (s *apiServer) note(e event) {
	s.events = append(s.events, e)
	close(s.changed)
	s.changed = make(chan struct{})
}

// expire deletes a slice while the connections break, and forgets the history with the deletion.
// The watch that follows has ended well before, so that the client goes on with its last version.
func (s *apiServer) expire(slice string, gone bool) {
	s.mu.Lock()
	s.gone, s.ending = gone, true
	delete(s.objects, "endpointslices/"+slice)
	s.version++
	s.compacted, s.events = s.version, nil
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
}

// refuse answers calls of a resource with a status; 0 ends that.
func (s *apiServer) refuse(resource string, status int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refusal[resource] = status
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/apis/discovery.k8s.io/v1/namespaces/ns/"), "/api/v1/namespaces/ns/"), "/")
	resource, q := parts[0], r.URL.Query()
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	status := s.refusal[resource]
	s.mu.Unlock()
	switch {
	case status != 0:
		reason := map[int]string{403: "Forbidden", 401: "Unauthorized", 404: "NotFound", 500: "InternalError"}[status]
		fail(w, status, reason, resource+" is forbidden: User \"berth\" cannot list it")
	case q.Has("sendInitialEvents"):
		s.t.Errorf("a list is streamed: %s", r.URL)
		fail(w, 400, "Invalid", "no")
	case len(parts) == 2:
		s.get(w, resource, parts[1])
	case q.Get("watch") != "":
		s.watch(w, r, resource)
	default:
		s.list(w, r, resource)
	}
}

func fail(w http.ResponseWriter, status int, reason, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"message":%q,"code":%d}`, reason, message, status)
}

func (s *apiServer) get(w http.ResponseWriter, resource, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	o, ok := s.objects[resource+"/"+name]
	if !ok {
		fail(w, 404, "NotFound", "not found")
		return
	}
	json.NewEncoder(w).Encode(o.value)
}

// selects reports whether the request's label selector, key=value or key, selects an object.
func selects(r *http.Request, o object) bool {
	key, value, _ := strings.Cut(r.URL.Query().Get("labelSelector"), "=")
	return o.labels[key] == value
}

func (s *apiServer) list(w http.ResponseWriter, r *http.Request, resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	kind := map[string]string{"pods": "PodList", "endpointslices": "EndpointSliceList"}[resource]
	group := map[string]string{"pods": "v1", "endpointslices": "discovery.k8s.io/v1"}[resource]
	items := []any{}
	for _, o := range s.objects {
		if o.resource == resource && selects(r, o) {
			items = append(items, o.value)
		}
	}
	json.NewEncoder(w).Encode(map[string]any{
		"kind": kind, "apiVersion": group, "items": items, "metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)},
	})
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, resource string) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	s.mu.Lock()
	if expired := from < s.compacted; expired {
		gone := s.gone
		s.mu.Unlock()
		if gone {
			fail(w, 410, "Expired", "too old resource version")
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"type": "ERROR", "object": json.RawMessage(
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","message":"too old resource version","code":410}`)})
		return
	}
	s.mu.Unlock()
	w.(http.Flusher).Flush()
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	end := time.After(time.Duration(seconds) * time.Second)
	for {
		s.mu.Lock()
		changed := s.changed
		if s.ending && from < s.compacted {
			s.mu.Unlock()
			return
		}
		for _, e := range s.events {
			if e.version > from && e.object.resource == resource && selects(r, e.object) {
				json.NewEncoder(w).Encode(map[string]any{"type": e.kind, "object": e.object.value})
				from = e.version
			}
		}
		s.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-end:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// slice puts an EndpointSlice of the Service "vllm" with a port http=8000. Endpoints are written as
// name@ip/uid and conditions: + ready, - terminating and serving, ? the same and ready, since the
// Service publishes pods that are not ready, ! neither.
func (s *apiServer) slice(name string, endpoints ...string) {
	s.sliceWith(name, []discoveryv1.EndpointPort{port("http", 8000)}, discoveryv1.AddressTypeIPv4, endpoints...)
}

func port(name string, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Port: &number}
}

func (s *apiServer) sliceWith(name string, ports []discoveryv1.EndpointPort, kind discoveryv1.AddressType, endpoints ...string) {
	s.ofService("vllm", name, ports, kind, endpoints...)
}

func (s *apiServer) ofService(service, name string, ports []discoveryv1.EndpointPort, kind discoveryv1.AddressType, endpoints ...string) {
	s.put("endpointslices", name, map[string]string{discoveryv1.LabelServiceName: service}, func(m metav1.ObjectMeta) any {
		o := &discoveryv1.EndpointSlice{
			TypeMeta:   metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"},
			ObjectMeta: m, AddressType: kind, Ports: ports,
		}
		for _, text := range endpoints {
			name, rest, _ := strings.Cut(text[1:], "@")
			ip, uid, _ := strings.Cut(rest, "/")
			e := discoveryv1.Endpoint{Addresses: []string{ip}}
			if name != "" {
				e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: name, UID: types.UID(uid)}
			}
			yes, no := true, false
			switch text[0] {
			case '-':
				e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
			case '?':
				e.Conditions = discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &yes}
			case '!':
				e.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &no, Terminating: &no}
			}
			o.Endpoints = append(o.Endpoints, e)
		}
		return o
	})
}

// pod puts a pod with the label app=vllm, described as an endpoint of slice, and its annotation.
func (s *apiServer) pod(text, annotation string, ports ...corev1.ContainerPort) {
	name, rest, _ := strings.Cut(text[1:], "@")
	ip, uid, _ := strings.Cut(rest, "/")
	s.put("pods", name, map[string]string{"app": "vllm"}, func(m metav1.ObjectMeta) any {
		m.UID = types.UID(uid)
		if annotation != "" {
			m.Annotations = map[string]string{limitAnnotation: annotation}
		}
		o := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: m}
		o.Spec.Containers = []corev1.Container{{Name: "vllm", Ports: ports}}
		o.Status.PodIP, o.Status.Phase = ip, corev1.PodRunning
		ready := corev1.ConditionTrue
		switch text[0] {
		case '-':
			o.DeletionTimestamp = new(metav1.Now())
		case '!':
			ready = corev1.ConditionFalse
		case 'x':
			o.Status.Phase = corev1.PodFailed
		}
		o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
		return o
	})
}
