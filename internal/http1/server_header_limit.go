package http1

import "net/http"

const (
	// MaxHeaderBytes bounds the header of a request, including the target. 64 KiB is the limit of
	// uvicorn, and so of vLLM and SGLang, and several times the size that browsers, SDKs and
	// gateways send with cookies and tokens; nginx and HAProxy accept less.
	MaxHeaderBytes = 64 << 10
	// ReadHeaderBytes is where a server stops reading a header. It exceeds MaxHeaderBytes, so that
	// a header beyond MaxHeaderBytes gets an error in the API's own form; a header beyond
	// ReadHeaderBytes gets net/http's.
	ReadHeaderBytes = 2 * MaxHeaderBytes
)

// HeaderTooLarge reports whether a request's header is larger than MaxHeaderBytes.
func HeaderTooLarge(r *http.Request) bool {
	size := len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size > MaxHeaderBytes
}
