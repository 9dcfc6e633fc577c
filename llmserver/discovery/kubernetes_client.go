package discovery

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"berth/internal/tcp"
)

// namespaceFile has the namespace of the pod in which the process runs.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// types of the two API groups, without the other ones that a clientset of client-go brings along.
var (
	apiTypes   = newScheme()
	parameters = runtime.NewParameterCodec(apiTypes)
)

func newScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(s); err != nil {
			panic(fmt.Sprintf("BUG: %v", err))
		}
	}
	return s
}

// A cluster is the connection to an API server. Clusters with the same server and credentials share
// one, since client-go caches transports.
type cluster struct {
	namespace string
	core      rest.Interface // Pods
	discovery rest.Interface // EndpointSlices
}

// newCluster returns the cluster of a kubeconfig, or the one in which the process runs if path is
// empty. It does not connect. An empty namespace means the one of the kubeconfig's context, or of
// the process.
func newCluster(path, namespace string) (*cluster, error) {
	config, own, err := clusterConfig(path)
	if err != nil {
		return nil, err
	}
	return connect(config, cmp.Or(namespace, own))
}

// connect returns a cluster reached by config, which it changes.
func connect(config *rest.Config, namespace string) (c *cluster, err error) {
	c = &cluster{namespace: namespace}
	// By default client-go sends pings over a connection with HTTP/2 that is silent for 30 s, and
	// gives it up 15 s later. HTTP/1.1, which servers without TLS speak, has no pings.
	if u, err := url.Parse(config.Host); err == nil && u.Scheme == "http" && config.Dial == nil {
		dialer := tcp.Dialer(10 * time.Second)
		config.Dial = dialer.DialContext
	}
	config.UserAgent = "berth"
	config.QPS, config.Burst = 50, 100 // of the pods that are read one by one; client-go's default is 5
	config.WarningHandler = rest.NoWarnings{}
	config.NegotiatedSerializer = serializer.NewCodecFactory(apiTypes).WithoutConversion()
	if c.core, err = groupClient(config, "/api", corev1.SchemeGroupVersion); err != nil {
		return nil, err
	}
	c.discovery, err = groupClient(config, "/apis", discoveryv1.SchemeGroupVersion)
	return c, err
}

// groupClient returns a client of one API group.
func groupClient(config *rest.Config, path string, group schema.GroupVersion) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = path, &group
	return rest.RESTClientFor(config)
}

// clusterConfig returns the client configuration in a kubeconfig, or that of the process's service
// account, and the namespace that comes with it.
func clusterConfig(path string) (c *rest.Config, namespace string, err error) {
	if path != "" {
		file := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: path}, nil)
		if c, err = file.ClientConfig(); err != nil {
			return nil, "", fmt.Errorf("kubeconfig %s: %w", path, err)
		}
		namespace, _, err = file.Namespace()
		return c, namespace, err
	}
	c, err = rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, "", errors.New("this process does not run in a pod of Kubernetes; set kubernetes.kubeconfig to the file with cluster and credentials")
	} else if err != nil {
		return nil, "", err
	}
	text, err := os.ReadFile(namespaceFile)
	return c, strings.TrimSpace(string(text)), err
}
