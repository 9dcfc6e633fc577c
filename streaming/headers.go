package streaming

import (
	"net/http"
	"slices"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// CopyRequestHeader sets in dst the fields of the client's request src that are meant for the upstream server. Left
// behind are the hop-by-hop fields, the framing (Content-Length is the outgoing request's own), Expect, and a slot
// token, which only berth may issue. No User-Agent is made up for a client that sent none.
//
// A field replaces that of the same name in dst. Values are shared with src: add to dst or replace in it, but do not
// write into its slices.
func CopyRequestHeader(dst, src http.Header) {
	copyEndToEnd(dst, src, ownRequestField)
	silence(dst, "User-Agent")
}

// TrimRequestHeader leaves in h what CopyRequestHeader would copy: for who owns the client's header and needs the rest
// no more, it is the cheaper way.
func TrimRequestHeader(h http.Header) {
	for _, name := range connectionOptions(h) {
		delete(h, name)
	}
	for name := range h {
		if hopByHop(name) || ownRequestField(name) {
			delete(h, name)
		}
	}
	silence(h, "User-Agent")
}

// ownRequestField tells the request fields that go no further than berth, or that each connection has anew.
func ownRequestField(name string) bool {
	switch name {
	case "Content-Length", "Expect", "X-Reserved-Slot-Token", "X-Slot-Holder":
		return true
	}
	return false
}

// CopyResponseHeader sets in dst the fields of the upstream answer src that are meant for the client: all but the
// hop-by-hop ones and those in which berth's parts speak to each other. Fields that dst has under other names stay.
// An event stream also asks the proxies on its way not to hold it back, unless it says otherwise itself. No
// Content-Type is guessed for an answer without one. Values are shared as in [CopyRequestHeader].
func CopyResponseHeader(dst, src http.Header) {
	copyEndToEnd(dst, src, internal)
	silence(dst, "Content-Type")
	if mediaType(src) == eventStream {
		setAbsent(dst, "X-Accel-Buffering", "no")
		setAbsent(dst, "Cache-Control", "no-cache")
	}
}

// announceTrailer names in dst the trailer fields that an answer says it will end with. It also keeps net/http from
// turning a short answer into one of known length, which could carry none.
func announceTrailer(dst, trailer http.Header) {
	for name := range trailer {
		if inTrailer(name) {
			dst.Add("Trailer", name)
		}
	}
}

// copyTrailer sets trailer fields in dst, announced or not. It is called after the body. One that was announced and did
// not come is left out: net/http would never end an HTTP/2 stream whose trailer has fields without values alone.
func copyTrailer(dst, trailer http.Header) {
	for name, values := range trailer {
		if len(values) > 0 && inTrailer(name) {
			dst[http.TrailerPrefix+name] = slices.Clip(values)
		}
	}
}

// inTrailer reports whether a field may be passed on in a trailer: not those by which messages are
// framed, routed, authenticated or understood, which are forbidden there (RFC 9110, section 6.5.1)
// and make some clients fail.
func inTrailer(name string) bool {
	return httpguts.ValidTrailerHeader(name) && !hopByHop(name) && !internal(name)
}

func copyEndToEnd(dst, src http.Header, private func(name string) bool) {
	named := connectionOptions(src)
	for name, values := range src {
		if hopByHop(name) || private(name) || slices.Contains(named, name) {
			continue
		}
		dst[name] = slices.Clip(values)
	}
}

// hopByHop tells the fields that concern one connection only (RFC 9110, section 7.6.1), together with those of proxy
// authentication. Names are in canonical form, as net/http makes them. Proxy-Status is end-to-end (RFC 9209).
func hopByHop(name string) bool {
	switch name {
	case "Connection", "Keep-Alive", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
		"Proxy-Authenticate", "Proxy-Authentication-Info", "Proxy-Authorization", "Proxy-Connection":
		return true
	}
	return false
}

// internal tells the answer fields of the slot protocol, which never reach a client.
func internal(name string) bool {
	switch name {
	case "X-Reserved-Slot-Token", "X-Num-Ongoing-Requests", "X-Slot-Instance", "X-Slot-Seq", "X-Slot-Refused", "X-Slot-Own":
		return true
	}
	return false
}

// connectionOptions lists the fields that the Connection field declares to be hop-by-hop, too.
func connectionOptions(h http.Header) (names []string) {
	for _, value := range h["Connection"] {
		for option := range strings.SplitSeq(value, ",") {
			names = append(names, http.CanonicalHeaderKey(strings.TrimSpace(option)))
		}
	}
	return names
}

// silence keeps net/http from inventing a field that h lacks: it takes a present name without values for an answer.
func silence(h http.Header, name string) {
	if _, ok := h[name]; !ok {
		h[name] = nil
	}
}

func setAbsent(h http.Header, name, value string) {
	if len(h[name]) == 0 {
		h.Set(name, value)
	}
}

const (
	eventStream = "text/event-stream"
	jsonBody    = "application/json"
)

// mediaType returns the content type without parameters, in lower case.
func mediaType(h http.Header) string {
	t, _, _ := strings.Cut(h.Get("Content-Type"), ";")
	return strings.ToLower(strings.TrimSpace(t))
}
