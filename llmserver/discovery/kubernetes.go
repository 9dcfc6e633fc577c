package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"berth/llmserver"
)

const (
	// listTimeout bounds a list. A watch is open-ended; the transport notices a dead connection.
	listTimeout = 30 * time.Second
	// repeatAfter is the least time between two log lines of one outage.
	repeatAfter = time.Minute
)

// retries is the backoff while the API server is away. The cap is well below client-go's 30 s,
// since replicas that are gone stay in use until the server is found again.
var retries = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.5, Cap: 10 * time.Second, Steps: 20}

// Kubernetes describes the pods of a model. Exactly one of Service and Selector is set.
type Kubernetes struct {
	Service    string
	Selector   string // of labels
	Port       string // name or number; empty: the only one
	Namespace  string // empty: that of the process, or of the kubeconfig's context
	Kubeconfig string // path; empty: the service account of the pod in which the process runs
}

// CheckSelector returns the problem with a label selector.
func CheckSelector(selector string) error {
	_, err := labels.Parse(selector)
	return err
}

// kubernetes is a source of endpoints that are pods: those in the EndpointSlices of a Service, or
// those that have certain labels.
//
// The list and watch, with all ways in which they end, are client-go's Reflector's; the objects are
// in a store that it replaces as a whole after a list, so that a set is never half of two lists.
type kubernetes struct {
	status          // of the calls
	objects  status // of what they return; Run's goroutine writes it
	name     string // of the source
	cluster  *cluster
	port     string
	resource resource
	limits   podLimits
	changed  chan struct{} // capacity 1: the store has changed
}

// A resource is a kind of objects that describe endpoints.
type resource struct {
	name     string // as in paths and RBAC rules
	group    string // of the API, as in RBAC rules
	selector string
	client   rest.Interface
	object   runtime.Object
	list     func() runtime.Object
	// pods returns the pods in the objects, or, if none has the port, the names of their ports.
	pods func(objects []any, port string) (found []pod, missing []string)
}

// A pod is one address of an endpoint.
type pod struct {
	name     string // "" without a pod
	uid      types.UID
	ip       string
	port     int
	draining bool // serves its ongoing requests, and is about to end

	annotation *string // limitAnnotation; nil: not known
	limit      int     // of annotation; 0: none
}

// NewKubernetes returns the pods of k. It does not connect. The error is one of the settings, or of
// the kubeconfig, which is read now.
func NewKubernetes(k Kubernetes, log *slog.Logger) (Source, error) {
	c, err := newCluster(k.Kubeconfig, k.Namespace)
	if err != nil {
		return nil, err
	}
	return newKubernetes(c, k, log), nil
}

// newKubernetes is NewKubernetes with a cluster.
func newKubernetes(c *cluster, k Kubernetes, log *slog.Logger) *kubernetes {
	s := &kubernetes{cluster: c, port: k.Port, changed: make(chan struct{}, 1)}
	if k.Service != "" {
		s.name, s.resource = "kubernetes "+c.namespace+"/"+k.Service, endpointSlices(c, k.Service)
	} else {
		s.name, s.resource = "kubernetes "+c.namespace+"/"+k.Selector, pods(c, k.Selector)
	}
	log = log.With("source", s.name)
	s.status, s.objects = status{log: log, quiet: repeatAfter}, status{log: log}
	s.limits = podLimits{cluster: c, log: log}
	return s
}

func (k *kubernetes) String() string { return k.name }

// Err implements Source.
func (k *kubernetes) Err() error {
	if err := k.status.Err(); err != nil {
		return err
	}
	return k.objects.Err()
}

// Lookup lists the objects once.
func (k *kubernetes) Lookup(ctx context.Context) ([]llmserver.Endpoint, error) {
	found, err := k.listObjects(withoutLog(ctx), metav1.ListOptions{})
	if err != nil {
		return nil, k.explain(err)
	}
	var objects []any
	for _, item := range itemsOf(found) {
		objects = append(objects, item)
	}
	set, _, err := k.endpoints(ctx, objects)
	return set, err
}

// Run implements Source.
func (k *kubernetes) Run(ctx context.Context, publish func([]llmserver.Endpoint)) {
	ctx = withoutLog(ctx) // the source logs what matters itself
	store := &notifyingStore{cache.NewStore(cache.MetaNamespaceKeyFunc), k.signal}
	reflector := cache.NewReflectorWithOptions(&listWatch{cache.ListWatch{
		ListWithContextFunc:  k.list,
		WatchFuncWithContext: k.watch,
	}}, k.resource.object, store, cache.ReflectorOptions{Name: k.name, Backoff: &retries, Logger: &klog.Logger{}})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		reflector.RunWithContext(ctx)
	}()
	defer func() { <-ended }()
	again := time.NewTimer(0)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-k.changed:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		set, incomplete, err := k.endpoints(ctx, store.List())
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			k.objects.failed(err)
		default:
			k.objects.succeeded()
			publish(set)
		}
		if incomplete {
			again.Reset(limitRetry)
		}
	}
}

// signal notifies Run of a change of the store.
func (k *kubernetes) signal() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

// list is the Reflector's list; success or failure is the status of the source.
func (k *kubernetes) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	found, err := k.listObjects(ctx, o)
	k.report(ctx, err)
	return found, err
}

func (k *kubernetes) listObjects(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	ctx, stop := context.WithTimeout(ctx, listTimeout)
	defer stop()
	o.LabelSelector = k.resource.selector
	found := k.resource.list()
	err := k.request(o).Do(ctx).Into(found)
	return found, err
}

// watch is the Reflector's watch.
func (k *kubernetes) watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	o.LabelSelector, o.Watch = k.resource.selector, true
	w, err := k.request(o).Watch(ctx)
	k.report(ctx, err)
	return w, err
}

func (k *kubernetes) request(o metav1.ListOptions) *rest.Request {
	return k.resource.client.Get().Namespace(k.cluster.namespace).Resource(k.resource.name).VersionedParams(&o, parameters)
}

// report records the result of a call. That a resource version has expired is no failure: the list
// that follows is complete.
func (k *kubernetes) report(ctx context.Context, err error) {
	switch {
	case ctx.Err() != nil || apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
	case err != nil:
		k.failed(k.explain(err))
	default:
		k.succeeded()
	}
}

// explain adds to an error of the API server what to do about it.
func (k *kubernetes) explain(err error) error {
	switch {
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; grant the verbs list and watch on the resource %s of the API group %q in the namespace %s",
			err, k.resource.name, k.resource.group, k.cluster.namespace)
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; the API server does not accept the credentials", err)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w; the API server does not serve %s.%s/v1", err, k.resource.name, k.resource.group)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the API server did not respond within %v", listTimeout)
	}
	if failed, ok := errors.AsType[*url.Error](err); ok { // whose URL differs each time
		return fmt.Errorf("API server: %w", failed.Err)
	}
	return err
}

// endpoints returns the endpoints in the objects. incomplete means that the capacity of some could
// not be read now. Of two addresses of one pod the first counts, the IPv4 one before the other, and
// of two pods at one address the ready one, since the other must be gone.
func (k *kubernetes) endpoints(ctx context.Context, objects []any) (set []llmserver.Endpoint, incomplete bool, err error) {
	found, missing := k.resource.pods(objects, k.port)
	if len(missing) > 0 {
		return nil, false, k.portError(missing)
	}
	slices.SortFunc(found, comparePods)
	incomplete = k.limits.fill(ctx, found)
	seen := make(map[any]bool, 2*len(found))
	for _, p := range found {
		address := net.JoinHostPort(p.ip, strconv.Itoa(p.port))
		if seen[address] || p.uid != "" && seen[p.uid] {
			continue
		}
		seen[address], seen[p.uid] = true, true
		e := llmserver.Endpoint{ID: p.name, URL: "http://" + address, Instance: string(p.uid), Limit: p.limit, Draining: p.draining}
		if p.name == "" {
			e.ID = address
		}
		set = append(set, e)
	}
	sortByID(set)
	return set, incomplete, nil
}

// portError returns the error of pods none of which has the port.
func (k *kubernetes) portError(ports []string) error {
	slices.Sort(ports)
	named := strings.Join(slices.DeleteFunc(slices.Compact(ports), func(name string) bool { return name == "" }), ", ")
	switch {
	case named == "":
		return errors.New("the pods declare no port; set port to its number")
	case k.port == "":
		return fmt.Errorf("the pods have more than one port; set port to one of %s", named)
	}
	return fmt.Errorf("no pod has the port %s; set port to one of %s", k.port, named)
}

// withoutLog returns a context for calls of client-go, which log nothing.
func withoutLog(ctx context.Context) context.Context { return klog.NewContext(ctx, klog.Logger{}) }
