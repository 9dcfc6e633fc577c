// Package discovery finds the replicas of a model: in a file, by DNS, or in Kubernetes.
//
// A [Source] publishes full sets of endpoints, never differences, so a replica that was removed
// while a source was away is gone as soon as the source is back. A source that is away, or has
// something to say that cannot be understood, publishes nothing: the last set stays.
//
// Identity is the URL and, in Kubernetes, the UID of the pod as the endpoint's Instance: another
// pod at an address that is used again is another replica.
package discovery
