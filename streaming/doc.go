// Package streaming relays upstream responses to clients, byte for byte and as they arrive.
//
// An event stream is written in whole events, with one write and one flush per upstream read; a
// response of known length is left to the server's own buffering. [Relay.Copy] reports which side
// broke off and whether the response has been started, so that the caller can decide between a
// retry, an error response and an abort. A truncated response is never made to look complete.
//
// A [Tap] counts events, tokens and times of a response during the copy. The functions on headers
// decide which fields may cross a proxy.
//
// The package knows nothing of models, replicas or retries. Passing an event allocates nothing.
package streaming
