package ingress

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"berth/config"
	"berth/llmserver/simulated"
)

// simulatedEngines are the simulated engines of a configuration. Each is an HTTP server on a
// loopback port of this process, so requests take the same path as to real engines.
//
// For a reload, prepare is called for every model, and then commit or rollback once for all. An
// engine keeps running while the configuration has the same settings for the model. Calls must not
// overlap: the registry makes them under applyMu.
type simulatedEngines struct {
	engines  []*simulatedEngine
	prepared []*simulatedEngine
	stopping sync.WaitGroup
}

// A simulatedEngine is a running engine with its settings.
type simulatedEngine struct {
	*simulated.Server
	setup simulated.Config
	model string
}

// prepare finds or starts the engines of a model and returns them as replicas. After an error
// rollback must be called.
func (f *simulatedEngines) prepare(m config.Model) ([]config.Replica, error) {
	replicas := make([]config.Replica, m.Simulated.Replicas)
	for i := range replicas {
		id := fmt.Sprintf("%s-%d", m.ID, i+1)
		e, err := f.findOrStart(m.ID, simulated.Config{
			ID:                     id,
			Model:                  m.ServedName,
			PrefillTokensPerSecond: m.Simulated.PrefillTokensPerSecond,
			DecodeStep:             m.Simulated.DecodeStep,
			DecodeStepPerRequest:   m.Simulated.DecodeStepPerRequest,
			KVCacheTokens:          m.Simulated.KVCacheTokens,
		})
		if err != nil {
			return nil, fmt.Errorf("a simulated replica did not start: %w", err)
		}
		f.prepared = append(f.prepared, e)
		replicas[i] = config.Replica{ID: id, URL: e.URL(), MaxOngoingRequests: m.MaxOngoingRequests}
	}
	return replicas, nil
}

// findOrStart returns the running engine with these settings, or starts one.
func (f *simulatedEngines) findOrStart(model string, setup simulated.Config) (*simulatedEngine, error) {
	for _, e := range f.engines {
		if e.model == model && e.setup == setup {
			return e, nil
		}
	}
	server, err := simulated.Listen("127.0.0.1:0", setup)
	if err != nil {
		return nil, err
	}
	return &simulatedEngine{server, setup, model}, nil
}

// commit keeps the prepared engines. All others stop after their last request; commit does not wait
// for them.
func (f *simulatedEngines) commit() {
	f.stopAllBut(f.prepared, f.engines)
	f.engines, f.prepared = f.prepared, nil
}

// rollback stops the engines started since the last commit.
func (f *simulatedEngines) rollback() {
	f.stopAllBut(f.engines, f.prepared)
	f.prepared = nil
}

func (f *simulatedEngines) stopAllBut(kept, engines []*simulatedEngine) {
	for _, e := range engines {
		if !slices.Contains(kept, e) {
			f.stopping.Go(func() { e.Shutdown(context.Background()) })
		}
	}
}

// close stops all engines at once, aborts their requests, and blocks until earlier engines have
// stopped, too.
func (f *simulatedEngines) close() {
	for _, e := range f.engines {
		e.Close()
	}
	f.stopping.Wait()
}
