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

// maxBusyBody bounds the bytes of a response body read by detectBusy. Bodies of busy responses are
// short.
const maxBusyBody = 16 << 10

// detectBusy returns llmserver.ErrBusy for a response by which an engine reports too much load. The
// response is kept, for the client if no other replica can serve the request. Any other response is
// left as if unread. For the statuses 429 and 503 detectBusy blocks until the body has ended or
// maxBusyBody bytes have arrived; for others it does not block.
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

// isGatewayError reports whether a status means that the server behind a gateway cannot serve. 500
// is excluded: engines send it for prompts that are too long.
func isGatewayError(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// attributeError returns the error of a broken response in the form for the replica's circuit
// breaker. A break before the first body byte counts as ErrBroken, a failure of the replica, unless
// berth itself aborted the response. The request is not retried, as the header had arrived.
func attributeError(result streaming.Result, err error) error {
	_, aborted := errors.AsType[*streaming.AbortError](err)
	if aborted || result.Started || !errors.Is(err, streaming.ErrUpstreamBroken) {
		return err
	}
	return fmt.Errorf("%w: %w", llmserver.ErrBroken, err)
}
