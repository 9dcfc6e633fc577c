package streaming

import (
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// CopyRequestHeader copies the end-to-end fields of the client's request header src to dst, without
// hop-by-hop fields, framing (Content-Length belongs to the outgoing request), Expect, and the
// fields of the slot protocol, which only berth may set. If the client sent no User-Agent, none is
// sent upstream.
//
// A field replaces the field of the same name in dst. Values are shared with src: the caller may
// add or replace fields of dst, but must not write to the slices.
func CopyRequestHeader(dst, src http.Header) {
	copyEndToEnd(dst, src, isOwnRequestField)
	suppressDefault(dst, "User-Agent")
}

// TrimRequestHeader removes from h the fields not copied by CopyRequestHeader. It is cheaper than a
// copy if the caller owns the client's header and needs none of the removed fields.
func TrimRequestHeader(h http.Header) {
	for _, name := range connectionOptions(h) {
		delete(h, name)
	}
	for name := range h {
		if isHopByHop(name) || isOwnRequestField(name) {
			delete(h, name)
		}
	}
	suppressDefault(h, "User-Agent")
}

// isOwnRequestField reports whether a request field is meant for berth, or set anew on each hop.
func isOwnRequestField(name string) bool {
	return name == "Content-Length" || name == "Expect" || isSlotProtocol(name)
}

// CopyResponseHeader copies the end-to-end fields of the upstream response header src to dst,
// without hop-by-hop fields and those of the slot protocol. Other fields of dst stay. An event
// stream also gets the fields against buffering and caching by proxies, unless the upstream set
// them. No Content-Type is guessed for a response without one. Values are shared as in
// [CopyRequestHeader].
func CopyResponseHeader(dst, src http.Header) {
	copyEndToEnd(dst, src, isSlotProtocol)
	suppressDefault(dst, "Content-Type")
	if mediaType(src) == eventStream {
		setDefault(dst, "X-Accel-Buffering", "no")
		setDefault(dst, "Cache-Control", "no-cache")
	}
}

// announceTrailer names in dst the trailer fields announced by the upstream. It also keeps net/http
// from adding a Content-Length to a short response, which rules out a trailer.
func announceTrailer(dst, trailer http.Header) {
	for name := range trailer {
		if inTrailer(name) {
			dst.Add("Trailer", name)
		}
	}
}

// copyTrailer sets trailer fields in dst, announced or not. It must be called after the body.
// Announced fields without values are left out: net/http never ends an HTTP/2 stream with only such
// fields in the trailer.
func copyTrailer(dst, trailer http.Header) {
	for name, values := range trailer {
		if len(values) > 0 && inTrailer(name) {
			dst[http.TrailerPrefix+name] = slices.Clip(values)
		}
	}
}

// inTrailer reports whether a trailer field may be relayed. Fields of framing, routing,
// authentication and content are forbidden in trailers (RFC 9110, section 6.5.1) and make some
// clients fail.
func inTrailer(name string) bool {
	return httpguts.ValidTrailerHeader(name) && !isHopByHop(name) && !isSlotProtocol(name)
}

// copyEndToEnd copies the fields of src except hop-by-hop and private ones.
func copyEndToEnd(dst, src http.Header, private func(name string) bool) {
	named := connectionOptions(src)
	for name, values := range src {
		if isHopByHop(name) || private(name) || slices.Contains(named, name) {
			continue
		}
		dst[name] = slices.Clip(values)
	}
}

// isHopByHop reports whether a field concerns one connection only (RFC 9110, section 7.6.1) or is
// one of proxy authentication. Names are in canonical form. Proxy-Status is end-to-end (RFC 9209).
func isHopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
		"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection":
		return true
	}
	return false
}

// isSlotProtocol reports whether a field belongs to the slot protocol between ingress and agent. No
// such field is copied, in a request or in a response: each hop sets its own.
func isSlotProtocol(name string) bool {
	switch name {
	case "X-Reserved-Slot-Token", "X-Slot-Holder", "X-Slot-Secret",
		"X-Num-Ongoing-Requests", "X-Slot-Instance", "X-Slot-Seq", "X-Slot-Own", "X-Slot-Refused":
		return true
	}
	return false
}

// connectionOptions returns the names of the fields declared hop-by-hop by the Connection field.
func connectionOptions(h http.Header) (names []string) {
	for _, value := range h["Connection"] {
		for option := range strings.SplitSeq(value, ",") {
			names = append(names, http.CanonicalHeaderKey(strings.TrimSpace(option)))
		}
	}
	return names
}

// suppressDefault keeps net/http from adding a default for a field missing in h: net/http adds none
// for a name present without values.
func suppressDefault(h http.Header, name string) {
	if _, ok := h[name]; !ok {
		h[name] = nil
	}
}

// setDefault sets a field if h has none of that name.
func setDefault(h http.Header, name, value string) {
	if len(h[name]) == 0 {
		h.Set(name, value)
	}
}

const (
	eventStream = "text/event-stream"
	jsonBody    = "application/json"
)

// IsJSON reports whether a response is JSON text that is not compressed.
func IsJSON(h http.Header) bool {
	return mediaType(h) == jsonBody && h.Get("Content-Encoding") == ""
}

// mediaType returns the content type without parameters, in lower case.
func mediaType(h http.Header) string {
	t, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}
