package ingress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/tidwall/gjson"

	"berth/internal/openai"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// errInvalidResponse is the failure of a replica with a JSON response that is none.
var errInvalidResponse = fmt.Errorf("%w: not valid JSON", llmserver.ErrNotHTTP)

// holdResponse has relay hold back the response until Check has accepted it, if a retry may follow:
// the response is JSON and successful, and the request is not streamed and creates nothing that
// stays.
func (x *proxyRequest) holdResponse(relay *streaming.Relay, resp *http.Response) {
	x.invalid = false
	if !x.record.Stream && !x.stores && resp.StatusCode == http.StatusOK && streaming.IsJSON(resp.Header) {
		relay.Check, x.held = x, resp
	}
}

// Check implements streaming.Checker for the response in x.held. A response that the engine aborted
// is kept, for the client if no other replica can serve the request. One that ends within a JSON
// value has broken, if only the end of the connection marks its end. Any other response that is no
// JSON passes, since the client may know better, but counts as a failure of the replica.
func (x *proxyRequest) Check(body []byte, complete bool) error {
	valid := !complete || isJSONText(body)
	switch text := bytes.TrimSpace(body); {
	case complete && openai.Aborted(body):
		kept := *x.held
		kept.Body = io.NopCloser(bytes.NewReader(bytes.Clone(body)))
		x.kept = &kept
		return llmserver.ErrAborted
	case !valid && len(text) > 0 && (text[0] == '{' || text[0] == '[') && x.held.ContentLength < 0 && len(x.held.TransferEncoding) == 0:
		return fmt.Errorf("%w: within a JSON value", llmserver.ErrBroken)
	}
	x.invalid = !valid
	return nil
}

// isJSONText reports whether body can be JSON text. Of an object or array only both ends are
// looked at, which costs nothing and finds a body that was cut short or is something else: what is
// in between is the engine's affair, since some write NaN, and clients accept that.
func isJSONText(body []byte) bool {
	text := bytes.TrimFunc(body, func(c rune) bool { return c <= ' ' })
	if n := len(text); n > 1 && (text[0] == '{' && text[n-1] == '}' || text[0] == '[' && text[n-1] == ']') {
		return true
	}
	return gjson.ValidBytes(text)
}

// reportEngineAbort logs and counts a response that the engine aborted: one that Check rejected
// with err, or a stream, which has been relayed with its finish reason. A replica may abort many
// requests at once, and each is a line of its own: it names the request.
func (x *proxyRequest) reportEngineAbort(sel *routers.Selection, err error) {
	if !x.record.Tap.Aborted && !errors.Is(err, llmserver.ErrAborted) {
		return
	}
	sel.Replica().RequestProbe()
	x.model.metrics.CountEngineAbort()
	x.log.Warn("an engine aborted a response; if it was stopped, give it time to finish its requests (vLLM: --shutdown-timeout)",
		"replica", x.record.Replica, "model", x.model.config.ID, "stream", x.record.Stream, "request_id", requestID(x.c))
}
