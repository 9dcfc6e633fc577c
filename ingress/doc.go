// Package ingress serves the OpenAI API to clients and proxies each request into the slot that a
// router reserved for it.
//
// The files, in the order in which a client's request uses them:
//
//	server.go         builds a Server, applies configurations and drains
//	listener.go       accepts connections; connlimit.go bounds their number, tls.go encrypts them
//	routes.go         maps paths to handlers; paths.go selects the other POSTs to forward
//	middleware.go     recovers panics, assigns the request ID; auth.go and cors.go admit the request
//	models.go         serves the list of models
//	responses.go      forwards requests for stored responses, which take no slot
//	proxy.go          serves a POST for inference: prepares the request, then makes attempts
//	prepare.go        reads and scans the body, resolves the model; session.go finds the session ID
//	attempt.go        reserves a slot, dispatches into it and relays the response
//	retry.go          decides on another attempt
//	busy.go           detects an engine that is too busy; timeouts.go bounds the attempt
//	ownerlookup.go    searches for the replica with a stored response; owners.go remembers it (recentmap.go)
//	request.go        holds the state of one request, shared by the files above
//	errorresponse.go  writes error responses; errors.go is the one table of API errors
//
// The control path: registry.go applies a configuration, prepared by plan.go and, for simulated
// engines, by simulated.go; restart.go delays reloads after restarts of replicas. apikeys.go holds
// the API keys. admin.go, adminguard.go and control.go are the listener for operators, state.go the
// state behind the gauges. memory.go, exhaustion.go and wire.go deal with limits and settings of
// the process.
//
// A file uses files further down that list. The exceptions are the types Server, model and apiKey:
// every handler is a method of Server, and the state of a request names its model and key.
package ingress
