// Package simulated is an LLM server without a model: it speaks the OpenAI API and takes the time, the memory and the
// cancellations that a continuously batching engine would.
//
// It has two halves. [Cost], [Cache], [Lease], [Sequence] and [Batch] are the engine's arithmetic: no goroutine, no clock, no HTTP, so that
// a replay can drive them in virtual time. [Engine] drives the same arithmetic in real time and answers requests with it;
// [Listen] puts an Engine behind a port of its own.
//
// What it reports is what it did: usage, metrics and [Stats] are readings of the batch and the cache. Text, ids and
// times of an answer depend on the request alone, so any two engines send the same bytes for the same
// request; only the usage object differs, where one of them had more of the prompt in its cache.
package simulated
