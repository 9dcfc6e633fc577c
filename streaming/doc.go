// Package streaming passes the answer of an upstream server on to a client, byte for byte and as it comes.
//
// An event stream is written in whole events, one write and one flush for each upstream read; an answer of known length
// is left to the server's own buffering. The package knows nothing of models, replicas or retries: it reports which side
// broke and whether there is still a way back, and its caller decides.
package streaming
