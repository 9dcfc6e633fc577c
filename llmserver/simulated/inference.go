package simulated

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"

	openai "github.com/sashabaranov/go-openai"
)

const maxBody = 64 << 20

// errCutByFault is returned after a fault has ended the response.
var errCutByFault = errors.New("response cut by a fault")

// An inference is one inference request, from arrival to the last byte of the response. Only the
// handler's goroutine uses it.
type inference struct {
	engine         *Engine
	w              http.ResponseWriter
	r              *http.Request
	faults         Faults
	faultsReplaced <-chan struct{} // closed when the faults have been replaced
	task           *task           // nil until the body is understood
	job            *job            // nil until added to the batch
	events         int             // sent
	finished       bool
}

// finish counts the end of the request; later calls do nothing. It must be called before the last
// write of the response: after reading the end of the response, no client may find the request
// still in flight.
func (x *inference) finish(o outcome) {
	if x.finished {
		return
	}
	x.finished = true
	switch {
	case x.job == nil:
		x.engine.counts.finish(o, "", 0, 0)
	case o == completed:
		x.engine.counts.finish(o, x.task.finishReason, len(x.task.prompts), 0)
	default:
		x.engine.counts.finish(o, "abort", len(x.task.prompts), x.job.cancelRemaining())
	}
}

// readBody reads the whole body; net/http detects disconnects only afterwards.
func (x *inference) readBody() ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, maxBody))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, &apiError{http.StatusRequestEntityTooLarge, "BadRequestError", "the body is too large."}
	}
	return body, err
}

// waitWhileHung holds the request while the Hang fault is set.
func (x *inference) waitWhileHung() error {
	if !x.faults.Hang {
		return nil
	}
	select {
	case <-x.faultsReplaced:
		return nil
	case <-x.r.Context().Done():
		return x.r.Context().Err()
	case <-x.engine.closed:
		return errClosed
	}
}

// submit adds the task to the batch.
func (x *inference) submit(t *task) (err error) {
	if t.model == "" {
		t.model = x.engine.config.Model
	}
	if t.model != x.engine.config.Model {
		return &apiError{http.StatusNotFound, "NotFoundError", "The model `" + t.model + "` does not exist."}
	}
	for _, prompt := range t.prompts {
		if room := x.engine.config.KVCacheTokens; len(prompt)+t.choices*t.maxTokens > room {
			return badRequest("This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the prompt, %d in the choices).",
				room, len(prompt)+t.choices*t.maxTokens, len(prompt), t.choices*t.maxTokens)
		}
	}
	x.task = t
	x.job, err = x.engine.submit(t.sequences())
	if errors.Is(err, ErrTooLarge) {
		return badRequest("%v.", err)
	}
	return err
}

// usage returns the usage object, which is final when every prompt has been computed.
func (x *inference) usage() openai.Usage {
	u := openai.Usage{PromptTokensDetails: &openai.PromptTokensDetails{}}
	for _, s := range x.job.sequences {
		u.PromptTokens += s.Prompt
		u.CompletionTokens += s.Choices * s.Limit
		u.PromptTokensDetails.CachedTokens += s.Cached()
	}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return u
}

// sendWhole waits for every token and sends the response in one piece.
func (x *inference) sendWhole(render func(openai.Usage) []byte) error {
	if _, err := x.job.waitForTokens(x.r.Context(), x.task.maxTokens-1); err != nil {
		return err
	}
	body := render(x.usage())
	x.w.Header().Set("Content-Type", "application/json")
	if x.faults.Cut == "" {
		x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		x.finish(completed)
		_, err := x.w.Write(body)
		return err
	}
	if x.faults.CutAfter > 0 {
		if x.faults.Cut != CutClean {
			x.w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		}
		x.w.Write(body[:len(body)/2])
		http.NewResponseController(x.w).Flush()
	}
	return x.cutResponse()
}

// sendStream sends the tokens as they are generated, each event in one write.
func (x *inference) sendStream(s *completion) error {
	x.w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	complete := x.faults.Cut == "" || x.faults.CutAfter >= s.eventCount()
	var event []byte
	for k := 0; k < s.task.maxTokens; k++ {
		if _, err := x.job.waitForTokens(x.r.Context(), k); err != nil {
			return err
		}
		if k == 0 {
			if err := x.sendPreambles(s); err != nil {
				return err
			}
		}
		if k == s.task.maxTokens-1 && complete {
			x.finish(completed)
		}
		for i := range s.choices {
			event = s.appendChunk(event[:0], &s.choices[i], k)
			if err := x.sendEvent(event); err != nil {
				return err
			}
		}
	}
	if s.task.includeUsage {
		if err := x.sendEvent(s.usageEvent(x.usage())); err != nil {
			return err
		}
	}
	return x.sendEvent([]byte(doneEvent))
}

// sendPreambles sends the events before the first token.
func (x *inference) sendPreambles(s *completion) error {
	for _, c := range s.choices {
		for _, event := range c.preambles {
			if err := x.sendEvent([]byte(event)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (x *inference) sendEvent(event []byte) error {
	if x.faults.Cut != "" && x.events == x.faults.CutAfter {
		return x.cutResponse()
	}
	x.events++
	if _, err := x.w.Write(event); err != nil {
		return err
	}
	return http.NewResponseController(x.w).Flush()
}

// cutResponse ends the response by the kind of cut. It returns errCutByFault, or panics to make
// net/http abort the connection.
func (x *inference) cutResponse() error {
	x.finish(aborted)
	if x.faults.Cut == CutReset {
		if conn, _, err := http.NewResponseController(x.w).Hijack(); err == nil {
			if tcp, ok := conn.(*net.TCPConn); ok {
				tcp.SetLinger(0)
			}
			conn.Close()
			return errCutByFault
		}
	}
	if x.faults.Cut == CutClean {
		return errCutByFault
	}
	panic(http.ErrAbortHandler)
}
