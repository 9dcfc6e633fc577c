package streaming

import "net/http"

// An Opening is the beginning of an event stream before there is a response to relay: comments, of
// which the first commits status 200. At most one goroutine calls the methods; until Close returns,
// no other may use the ResponseWriter. A nil *Opening has written nothing.
type Opening struct {
	c         *clientWriter
	keepAlive *keepAlive
}

// Open starts the comments, one after each KeepAlive, which must be above 0, without waiting. The
// caller must Close the Opening before the handler returns.
func (r *Relay) Open(w http.ResponseWriter) *Opening {
	header := http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}, "Cache-Control": {"no-cache"}}
	c := newClientWriter(w, &http.Response{StatusCode: http.StatusOK, Header: header}, r.WriteTimeout)
	return &Opening{c, c.startKeepAlive(r.KeepAlive)}
}

// Close stops the comments and reports whether one was written. If so, the response must go on as
// an event stream: by a Relay with Opened set, or by Fail. Further calls return the same. Close
// blocks while a comment is being written, at most for the WriteTimeout.
func (o *Opening) Close() (opened bool) {
	if o == nil {
		return false
	}
	o.keepAlive.stop()
	o.c.watchdog.stop()
	return o.c.Started
}

// Fail writes an error event. Call Fail once, after Close has returned true, and then panic with
// http.ErrAbortHandler.
func (o *Opening) Fail(event []byte) {
	end := newClientWriter(o.c.w, o.c.resp, o.c.watchdog.timeout)
	end.Started = true
	_, _ = end.write(event, true) // the stream is aborted in any case
	end.close()
}

// IsEventStream reports whether a Relay with Opened set can relay the response: status 200 and an
// event stream, neither compressed nor of known length.
func IsEventStream(resp *http.Response) bool {
	return resp.StatusCode == http.StatusOK && mediaType(resp.Header) == eventStream &&
		resp.Header.Get("Content-Encoding") == "" && resp.ContentLength < 0
}
