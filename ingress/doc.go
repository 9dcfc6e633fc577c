// Package ingress serves the OpenAI API to clients and proxies each request into the slot that a
// router reserved for it.
//
// The way of a client's request, by file:
//
//	listener.go    accepts the connection; connlimit.go bounds their number, tls.go encrypts them
//	routes.go      maps paths to handlers; paths.go decides which other POSTs are forwarded
//	middleware.go  recovers panics, assigns the request ID; auth.go and cors.go admit the request
//	models.go      serves the list of models
//	responses.go   forwards requests for stored responses, which take no slot
//	proxy.go       serves a POST for inference: prepares it, then makes attempts
//	intake.go      reads and scans the body, resolves the model
//	attempt.go     reserves a slot, dispatches into it and relays the response
//	busy.go        detects an engine that is too busy; timeouts.go bounds the attempt
//	errors.go      is the one table of the errors that clients read
//
// The control path: server.go builds a Server and drains it. registry.go applies a configuration,
// which plan.go prepares; restart.go delays its repetition when replicas restart. owners.go remembers
// which replica holds which stored response; ownerlookup.go searches for it. admin.go, adminguard.go
// and control.go are the listener for operators.
//
// A file uses files further along that way. The exception is requestState in middleware.go, which a
// request carries along.
package ingress
