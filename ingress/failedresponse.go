package ingress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"

	"berth/ingress/telemetry"
	"berth/llmserver"
	"berth/routers"
	"berth/streaming"
)

// maxKeptBody bounds the bytes of an error response kept for the client. Bodies of error responses
// are short.
const maxKeptBody = 16 << 10

// checkStatus returns why a response is a failure of the replica, see llmserver.Classify, and
// reports the failure to the replica. Such a response is kept, for the client if no other replica
// can serve the request. Any other response is left as if unread, and so is one too long to be
// kept, for which the error is nil.
//
// For the statuses 404, 429 and 5xx checkStatus blocks until the body has ended or maxKeptBody
// bytes have arrived; for others it does not block.
func (x *proxyRequest) checkStatus(sel *routers.Selection, resp *http.Response) error {
	if resp.StatusCode < http.StatusInternalServerError && resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusNotFound {
		return nil
	}
	start, err := io.ReadAll(io.LimitReader(resp.Body, maxKeptBody))
	if err != nil {
		if ctx := x.c.Request.Context(); ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", streaming.ErrClientGone, context.Cause(ctx))
		} else {
			err = attributeError(fmt.Errorf("%w: %w", streaming.ErrUpstreamBroken, err))
		}
		sel.Fail(err)
		return err
	}
	rest := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(start), rest), rest}
	failure := llmserver.Classify(resp.StatusCode, start)
	if failure == nil {
		return nil
	}
	sel.Fail(failure)
	if len(start) == maxKeptBody {
		return nil
	}
	if x.kept == nil || x.kept.StatusCode != http.StatusOK { // an aborted response is better than none
		kept := *resp
		kept.Body = io.NopCloser(bytes.NewReader(start))
		x.kept = &kept
	}
	return failure
}

// writeKept sends the client the kept response, unchanged. If the client disconnects meanwhile,
// writeKept panics as abort does; also in an opened stream, where the response is an error event.
func (x *proxyRequest) writeKept() error {
	x.record.Phase = telemetry.PhaseStreaming
	if x.opening.Close() {
		x.failOpenedBy(x.kept)
	}
	var tap *streaming.Tap
	if x.kept.StatusCode == http.StatusOK { // an aborted response, which has tokens
		tap, x.record.Measured = &x.record.Tap, true
	}
	var err error
	relay := x.relayFor(x.c.Request.URL.Path, 0)
	if x.record.Response, err = relay.Copy(x.c.Request.Context(), x.c.Writer, x.kept, tap); err != nil {
		x.abort(err)
	}
	return nil
}

// attributeError returns the error of a broken response in the form for the replica: a break is
// ErrBroken, a failure of the replica, unless berth itself aborted the response.
func attributeError(err error) error {
	if _, aborted := errors.AsType[*streaming.AbortError](err); aborted || !errors.Is(err, streaming.ErrUpstreamBroken) {
		return err
	}
	return fmt.Errorf("%w: %w", llmserver.ErrBroken, err)
}
