// Package openai describes the APIs of LLM servers on the wire: the paths, the error objects, the
// fields of a request body used for routing, and the hashes of a prompt.
//
// The package covers OpenAI's API, Anthropic's Messages API and the native APIs of the engines. It
// does no I/O and imports no other package of this module.
package openai
