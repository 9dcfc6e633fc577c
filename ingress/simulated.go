package ingress

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"berth/config"
	"berth/llmserver/simulated"
)

// fleet holds the simulated engines, each an HTTP server on a loopback port of this process, so
// that requests to them take the whole way that they take to real ones.
//
// For a configuration every model is prepared, and then all is committed or
// abandoned. An engine stays for as long as its model asks for engines of its kind.
type simulatedEngines struct {
	engines  []*simulatedEngine
	prepared []*simulatedEngine
	stopping sync.WaitGroup
}

// engine is a simulated engine and what it was started for.
type simulatedEngine struct {
	*simulated.Server
	setup simulated.Config
	model string
}

// prepare finds or starts the engines of a model, and describes them as replicas.
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

// engine is the one that runs with this setup, or a new one.
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

// commit keeps the engines that were prepared. The others stop when their
// requests are done.
func (f *simulatedEngines) commit() {
	f.stopAllBut(f.prepared, f.engines)
	f.engines, f.prepared = f.prepared, nil
}

// abandon keeps the engines as they were before.
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

// close stops all engines at once, requests or not.
func (f *simulatedEngines) close() {
	for _, e := range f.engines {
		e.Close()
	}
	f.stopping.Wait()
}
