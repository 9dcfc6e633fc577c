package ingress

import "berth/ingress/telemetry"

// state returns the state behind the gauges, for one scrape. Any goroutine may call state, from New
// on.
func (s *Server) state() telemetry.State {
	t := s.registry.table.Load()
	state := telemetry.State{
		Draining:           s.draining.Load(),
		BufferedBytes:      s.budget.Held(),
		BufferedBytesLimit: s.budget.Limit(),
		Connections:        s.connLimit.connCount(),
		ConnectionLimit:    s.connLimit.limit.Load(),
		Keys:               make([]telemetry.KeyState, 0, len(t.keys)),
		Models:             make([]telemetry.ModelState, 0, len(t.models)),
		Replicas:           s.registry.allReplicas(),
	}
	for _, key := range t.keys {
		state.Keys = append(state.Keys, telemetry.KeyState{Name: key.name, Ongoing: key.ongoing.Load()})
	}
	for _, m := range t.models {
		state.Models = append(state.Models, telemetry.ModelState{Metrics: m.metrics, Router: m.router})
	}
	for _, source := range t.sources {
		state.Sources = append(state.Sources, telemetry.SourceState{
			Model: source.model, Source: source.String(), Up: source.published.Load() && source.Err() == nil, Replicas: len(source.endpoints()),
		})
	}
	return state
}
