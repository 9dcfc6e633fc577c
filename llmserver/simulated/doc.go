// Package simulated is an LLM server without a model. It speaks the OpenAI API and takes the time,
// memory and cancellations of an engine with continuous batching.
//
// The package has two halves. [Cost], [Cache], [Lease], [Sequence] and [Batch] are the engine's
// arithmetic: no goroutine, no clock, no HTTP, so that a replay can drive them in virtual time.
// [Engine] drives the same arithmetic in real time and responds to requests; [Listen] serves an
// Engine on a port of its own.
//
// Usage, metrics and [Stats] are read from the batch and the cache. Text, IDs and times of a
// response depend on the request alone, so any two engines send the same bytes for the same
// request. Only the usage object differs, if one of them had more of the prompt in its cache.
package simulated
