package ingress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"

	"berth/ingress/telemetry"
	"berth/llmserver"
	"berth/streaming"
)

// maxRefusal is how much of an answer is looked at. Refusals are short.
const maxRefusal = 16 << 10

// refused looks whether an answer is the engine's own way of saying that it is too busy. If so, the
// answer is kept, for the client if no replica answers better, and llmserver.ErrBusy says so. Any other
// answer is as it was.
func (x *proxyRequest) refused(resp *http.Response) error {
	if resp.StatusCode != http.StatusServiceUnavailable && resp.StatusCode != http.StatusTooManyRequests {
		return nil
	}
	head, err := io.ReadAll(io.LimitReader(resp.Body, maxRefusal))
	if err != nil {
		return fmt.Errorf("%w: %w", streaming.ErrUpstreamBroken, err)
	}
	rest := resp.Body
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(head), rest), rest}
	if len(head) == maxRefusal || !llmserver.Busy(resp.StatusCode, head) {
		return nil
	}
	kept := *resp
	kept.Body = io.NopCloser(bytes.NewReader(head))
	x.refusal = &kept
	return llmserver.ErrBusy
}

// passRefusal gives the client the last refusal, untouched.
func (x *proxyRequest) passRefusal() error {
	x.record.Phase = telemetry.PhaseStreaming
	x.refusal.Header.Del(requestIDHeader)
	var err error
	relay := x.relayFor(x.c.Request.URL.Path, 0)
	if x.record.Response, err = relay.Copy(x.c.Request.Context(), x.c.Writer, x.refusal, nil); err != nil {
		x.abort(err)
	}
	return nil
}

// gatewayError tells an answer by which a replica says that what is behind it cannot serve. 500 is
// none: engines answer it to prompts that are too long.
func gatewayError(status int) bool {
	return status == http.StatusBadGateway || status == http.StatusServiceUnavailable || status == http.StatusGatewayTimeout
}

// verdict is what the break of an answer says of its replica. One before the first byte is the
// replica's failure, though its head has come and it is not asked for again; unless berth cut it.
func verdict(result streaming.Result, err error) error {
	_, cut := errors.AsType[*streaming.AbortError](err)
	if cut || result.Started || !errors.Is(err, streaming.ErrUpstreamBroken) {
		return err
	}
	return fmt.Errorf("%w: %w", llmserver.ErrBroken, err)
}
