package ingress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"berth/llmserver"
	"berth/streaming"
)

// maxBusyBody is how much of a response body detectBusy reads. Bodies of busy responses are short.
const maxBusyBody = 16 << 10

// detectBusy returns llmserver.ErrBusy if a response is the engine's way of saying that it is too
// busy. It then keeps the response, for the client if no other replica responds better. Any other
// response is left as if unread. It blocks until the body has ended or maxBusyBody has arrived, for
// the statuses 429 and 503 only.
func (x *proxyRequest) detectBusy(resp *http.Response) error {
	if resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	start, err := io.ReadAll(io.LimitReader(resp.Body, maxBusyBody))
	if err != nil {
		return fmt.Errorf("%w: %w", streaming.ErrUpstreamBroken, err)
	}
	rest := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), rest), rest}
	if len(start) == maxBusyBody || !llmserver.Busy(resp.StatusCode, start) {
		return nil
	}
	kept := *resp
	kept.Body = io.NopCloser(bytes.NewReader(start))
	x.refusal = &kept
	return llmserver.ErrBusy
}

// writeBusy sends the client the last busy response, unchanged. If the client disconnects meanwhile
// it does not return.
func (x *proxyRequest) writeBusy() error {
	x.phase = phaseStreaming
	x.refusal.Header.Del(requestIDHeader)
	var err error
	relay := x.relaying(x.c.Request.URL.Path, 0)
	if x.result, err = relay.Copy(x.c.Request.Context(), x.c.Writer, x.refusal, nil); err != nil {
		x.abort(err)
	}
	return nil
}

// isGatewayError reports whether a status says that what is behind the replica cannot serve. 500 does
// not: engines respond with it to prompts that are too long.
func isGatewayError(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// attributeError returns the error of a response that broke off as the replica is to be blamed for
// it. A break before the first body byte is the replica's failure, although its header arrived and
// the request is not retried, unless berth itself aborted the response.
func attributeError(result streaming.Result, err error) error {
	_, aborted := errors.AsType[*streaming.AbortError](err)
	if aborted || result.Started || !errors.Is(err, streaming.ErrUpstreamBroken) {
		return err
	}
	return fmt.Errorf("%w: %w", llmserver.ErrBroken, err)
}
