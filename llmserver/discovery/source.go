package discovery

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"berth/llmserver"
)

// A Source knows the endpoints of a model.
//
// Endpoints of a source have a URL and an ID, and where the source knows them Instance, Limit,
// APIKey and Draining; the zero Limit means the model's. The other fields are the caller's to set.
type Source interface {
	// Run calls publish with the full set of endpoints once it is known, and after every change,
	// until ctx ends. An error is logged, and the last set stays. publish is called on one
	// goroutine at a time and must not change the slice. Run may be called once.
	Run(ctx context.Context, publish func([]llmserver.Endpoint))
	// Lookup returns the set of this moment, or the reason why there is none. It may be called
	// before Run, and without.
	Lookup(ctx context.Context) ([]llmserver.Endpoint, error)
	// Err returns the reason why the source is away, or nil. Any goroutine may call it.
	Err() error
	// String returns the source's name for operators, like "file replicas.yaml".
	String() string
}

// sortByID sorts endpoints, so that a set is equal to the next one if nothing has changed.
func sortByID(set []llmserver.Endpoint) {
	slices.SortFunc(set, func(a, b llmserver.Endpoint) int {
		return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.URL, b.URL), cmp.Compare(a.Instance, b.Instance))
	})
}

// status is the success or failure of a source's last attempt. Changes are logged: a line when the
// source goes away, one for another reason, and one when it is back. One goroutine at a time calls
// failed and succeeded.
type status struct {
	log    *slog.Logger  // with the source
	quiet  time.Duration // least time between two lines of one outage, whose reasons may alternate
	logged time.Time     // the last line of the outage
	reason atomic.Pointer[error]
}

// Err returns the reason of the failure, or nil.
func (s *status) Err() error {
	if err := s.reason.Load(); err != nil {
		return *err
	}
	return nil
}

func (s *status) failed(err error) {
	before := s.Err()
	if before == nil || before.Error() != err.Error() && time.Since(s.logged) >= s.quiet {
		s.log.Warn("the source of replicas is not available; the last set of replicas stays", "error", err)
		s.logged = time.Now()
	}
	s.reason.Store(&err)
}

func (s *status) succeeded() {
	if s.reason.Swap(nil) != nil {
		s.log.Info("the source of replicas is available again")
	}
}
