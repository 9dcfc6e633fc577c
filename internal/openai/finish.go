package openai

import "bytes"

// Aborted reports whether a response, or a part of one, has the finish reason "abort", by which
// vLLM and SGLang end requests that they do not complete, such as all running ones on SIGTERM. Such
// a response looks complete otherwise.
//
// A quote inside a JSON string is always escaped, so the bytes "finish_reason" with both quotes,
// before a colon, can only be a key. Most texts lack the value, which one fast search shows.
func Aborted(p []byte) bool {
	value := []byte(`"abort"`)
	for {
		i := bytes.Index(p, value)
		if i < 0 {
			return false
		}
		before, ok := bytes.CutSuffix(bytes.TrimRight(p[:i], jsonSpace), []byte(":"))
		if ok && bytes.HasSuffix(bytes.TrimRight(before, jsonSpace), []byte(`"finish_reason"`)) {
			return true
		}
		p = p[i+len(value):]
	}
}

const jsonSpace = " \t\r\n"
