// Package ingress is the HTTP front of berth: it answers OpenAI requests, reads each body once into replayable bytes,
// finds in one pass over them what routing needs, and proxies the request into the slot that a router reserved for it.
package ingress
