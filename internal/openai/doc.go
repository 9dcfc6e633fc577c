// Package openai describes the APIs that LLM servers speak, as they are on the wire: the paths, the
// error objects, the fields of a request body that routing needs, and the hashes of a prompt.
//
// It covers OpenAI's API, Anthropic's Messages API and the native APIs of the engines. It does no
// I/O and imports no other package of this module.
package openai
