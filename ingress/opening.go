package ingress

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"berth/internal/openai"
	"berth/streaming"
)

// maxStatusText bounds the part of a replica's error that is repeated in an error event.
const maxStatusText = 1000

// open starts comments for a stream that waits, if so configured. From the first comment on the
// response has status 200 and is an event stream, so every failure is sent as an error event. That
// does not forbid another attempt: nothing of a response has been sent. The caller must close
// x.opening.
//
// A response of a replica could be compressed, which the stream by then is not, so the replica is
// not offered that.
func (x *proxyRequest) open() {
	path := x.c.Request.URL.Path
	if !x.model.config.KeepAliveWhileQueued || !x.record.Stream || !openai.StreamsEvents(path) {
		return
	}
	x.c.Request.Header.Del("Accept-Encoding")
	relay := x.relayFor(path, x.model.config.StreamKeepAlive)
	x.opening = relay.Open(x.c.Writer)
}

// failOpened ends an opened stream with an error event, and panics as abort does.
func (x *proxyRequest) failOpened(err error) {
	a := toAPIError(err)
	e := a.object()
	event := e.Event()
	if openai.IsAnthropicPath(x.c.Request.URL.Path) {
		event = e.AnthropicEvent()
	}
	x.opening.Fail(event)
	x.abort(err)
}

// failOpenedBy is failOpened for a replica's response that is no event stream, such as an error.
// failOpenedBy blocks until the body has ended or maxKeptBody bytes have arrived.
func (x *proxyRequest) failOpenedBy(resp *http.Response) {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxKeptBody)) // what has arrived of a broken response is of use, too
	x.failOpened(&streaming.AbortError{Code: "upstream_status", Message: statusText(resp.StatusCode, text)})
}

// statusText returns the message for a response that is no event stream: the replica's own, if
// there is one.
func statusText(status int, body []byte) string {
	var object struct {
		Message string
		Error   json.RawMessage
	}
	text := string(bytes.TrimSpace(body))
	if json.Unmarshal(body, &object) == nil {
		var inner struct{ Message string }
		switch {
		case json.Unmarshal(object.Error, &inner) == nil && inner.Message != "":
			text = inner.Message
		case object.Message != "":
			text = object.Message
		}
	}
	if len(text) > maxStatusText {
		text = text[:maxStatusText] + "…"
	}
	return fmt.Sprintf("The replica responded with status %d: %s", status, text)
}
