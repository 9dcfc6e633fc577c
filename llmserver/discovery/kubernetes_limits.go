package discovery

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"berth/llmserver"
)

const (
	// limitAnnotation is the annotation of a pod with the capacity of its replica.
	limitAnnotation = "berth-max-ongoing-requests"
	// limitTimeout bounds the reading of annotations before a set is published without them.
	limitTimeout = 2 * time.Second
	// limitRetry is the time until annotations that could not be read are tried again.
	limitRetry = 10 * time.Second
	// forbiddenFor is the time for which no annotation is read after the API server has refused
	// one.
	forbiddenFor = 10 * time.Minute
	// limitReads is the number of annotations read at once.
	limitReads = 16
)

// podLimits reads the capacity that pods have in an annotation. EndpointSlices lack it, so their
// pods are read once each, if the API server permits. One goroutine uses it.
type podLimits struct {
	cluster   *cluster
	log       *slog.Logger
	known     map[types.UID]string // annotations read
	warned    map[types.UID]bool   // pods with a wrong annotation
	forbidden time.Time            // until then none is read
}

// fill sets the limits of pods, and reports whether some annotation is to be read again later. It
// blocks for limitTimeout at most.
func (l *podLimits) fill(ctx context.Context, found []pod) (incomplete bool) {
	known, warned := make(map[types.UID]string, len(found)), make(map[types.UID]bool)
	var unknown []*pod
	for i := range found {
		p := &found[i]
		if p.annotation == nil && p.uid != "" {
			if text, ok := l.known[p.uid]; ok {
				p.annotation, known[p.uid] = &text, text
			} else {
				unknown = append(unknown, p)
			}
		}
	}
	incomplete = l.read(ctx, unknown)
	for i := range found {
		p := &found[i]
		if p.annotation == nil {
			continue
		}
		known[p.uid] = *p.annotation
		limit, err := strconv.Atoi(*p.annotation)
		switch {
		case *p.annotation == "":
		case err == nil && limit > 0:
			p.limit = min(limit, llmserver.MaxLimit)
		default:
			if warned[p.uid] = true; !l.warned[p.uid] {
				l.log.Warn("the annotation of a pod is not a whole number above 0; the capacity of the model applies",
					"pod", p.name, limitAnnotation, *p.annotation)
			}
		}
	}
	l.known, l.warned = known, warned
	return incomplete
}

// read reads the annotations of pods, and reports whether some are to be read again.
func (l *podLimits) read(ctx context.Context, unknown []*pod) (incomplete bool) {
	if len(unknown) == 0 || time.Now().Before(l.forbidden) {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, limitTimeout)
	defer stop()
	errs := make([]error, len(unknown))
	var all sync.WaitGroup
	places := make(chan struct{}, limitReads)
	for i, p := range unknown {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			p.annotation, errs[i] = l.readOne(ctx, p)
		})
	}
	all.Wait()
	for _, err := range errs {
		switch {
		case err == nil:
		case apierrors.IsForbidden(err):
			if l.forbidden.IsZero() {
				l.log.Info("the capacity in annotations of pods is not read; grant the verb get on the resource pods if they have one",
					"annotation", limitAnnotation, "namespace", l.cluster.namespace, "error", err)
			}
			l.forbidden = time.Now().Add(forbiddenFor)
			return false
		default:
			incomplete = true
		}
	}
	return incomplete
}

// readOne returns the annotation of a pod, "" for none. A pod that is gone, or was replaced by
// another of its name, has none.
func (l *podLimits) readOne(ctx context.Context, p *pod) (*string, error) {
	var o corev1.Pod
	err := l.cluster.core.Get().Namespace(l.cluster.namespace).Resource("pods").Name(p.name).Do(ctx).Into(&o)
	annotation := o.Annotations[limitAnnotation]
	switch {
	case apierrors.IsNotFound(err) || err == nil && o.UID != p.uid:
		annotation = ""
	case err != nil:
		return nil, err
	}
	return &annotation, nil
}
