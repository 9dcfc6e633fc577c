package simulated

import (
	"encoding/json"
	"errors"
	"net/http"
)

// Handler returns the HTTP handler of the engine:
//
//	POST /v1/chat/completions, /v1/completions, /v1/embeddings
//	GET  /v1/models, /health, /metrics
//	GET  /simulated/stats      returns Stats
//	POST /simulated/faults     calls SetFaults; unknown fields are an error
//	POST /simulated/reset      calls Reset
func (e *Engine) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/chat/completions", e.accounted(generate(parseChat)))
	mux.Handle("POST /v1/completions", e.accounted(generate(parseCompletion)))
	mux.Handle("POST /v1/embeddings", e.accounted(embed))
	mux.HandleFunc("GET /v1/models", e.serveModels)
	mux.HandleFunc("GET /health", e.serveHealth)
	mux.HandleFunc("GET /metrics", e.serveMetrics)
	mux.HandleFunc("GET /simulated/stats", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, e.Stats()) })
	mux.HandleFunc("POST /simulated/faults", e.serveFaults)
	mux.HandleFunc("POST /simulated/reset", func(w http.ResponseWriter, _ *http.Request) { e.Reset() })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Simulated-Replica", e.config.ID)
		if id := r.Header.Get("X-Request-Id"); id != "" {
			w.Header().Set("X-Request-Id", id)
		}
		mux.ServeHTTP(w, r)
	})
}

// accounted wraps handle so that each request is counted on arrival and, on every path, at its end.
func (e *Engine) accounted(handle func(x *inference, body []byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &inference{engine: e, w: w, r: r}
		x.faults, x.faultsReplaced = e.faults.takeHit()
		switch {
		case x.faults.Status != 0:
			e.counts.countRefused()
			x.readBody() // otherwise net/http may close the connection before the client reads the refusal
			writeFaultRefusal(w, x.faults)
			return
		case !e.counts.admit(e.config.MaxOngoing):
			x.readBody()
			writeAPIError(w, &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "too many requests in flight."})
			return
		}
		defer x.finish(aborted)
		body, err := x.readBody()
		if err == nil {
			err = x.waitWhileHung()
		}
		if err == nil {
			err = handle(x, body)
		}
		if err != nil {
			x.writeFailure(err)
		}
	}
}

func generate(parse func([]byte) (*task, error)) func(*inference, []byte) error {
	return func(x *inference, body []byte) error {
		t, err := parse(body)
		if err != nil {
			return err
		}
		if err := x.submit(t); err != nil {
			return err
		}
		s := newCompletion(t)
		if t.stream {
			return x.sendStream(s)
		}
		return x.sendWhole(s.render)
	}
}

func embed(x *inference, body []byte) error {
	e, err := parseEmbedding(body)
	if err != nil {
		return err
	}
	if err := x.submit(e.task); err != nil {
		return err
	}
	return x.sendWhole(e.render)
}

// writeFailure ends a request without a complete response: with an error if nothing was sent yet,
// otherwise by breaking the connection.
func (x *inference) writeFailure(err error) {
	if errors.Is(err, errCutByFault) {
		return
	}
	if p, ok := errors.AsType[*apiError](err); ok {
		x.finish(rejected)
		writeAPIError(x.w, p)
		return
	}
	x.finish(aborted)
	if errors.Is(err, errClosed) && x.events == 0 {
		writeAPIError(x.w, &apiError{http.StatusServiceUnavailable, "ServiceUnavailableError", "the engine is shutting down."})
		return
	}
	panic(http.ErrAbortHandler)
}

func (e *Engine) serveModels(w http.ResponseWriter, _ *http.Request) {
	type model struct {
		ID          string `json:"id"`
		Object      string `json:"object"`
		Created     int64  `json:"created"`
		OwnedBy     string `json:"owned_by"`
		Root        string `json:"root"`
		MaxModelLen int    `json:"max_model_len"`
	}
	name := e.config.Model
	writeJSON(w, http.StatusOK, struct {
		Object string  `json:"object"`
		Data   []model `json:"data"`
	}{"list", []model{{name, "model", created, "simulated", name, e.config.KVCacheTokens}}})
}

func (e *Engine) serveHealth(w http.ResponseWriter, _ *http.Request) {
	select {
	case <-e.closed:
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		if e.faults.current().Unhealthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}
}

func (e *Engine) serveFaults(w http.ResponseWriter, r *http.Request) {
	var f Faults
	in := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16))
	in.DisallowUnknownFields()
	err := in.Decode(&f)
	if err == nil {
		err = f.check()
	}
	if err != nil {
		writeAPIError(w, badRequest("%v", err))
		return
	}
	e.SetFaults(f)
}

func writeFaultRefusal(w http.ResponseWriter, f Faults) {
	if f.Garbage {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(f.Status)
		w.Write([]byte("<html><body><h1>It doesn't work!</h1></body></html>\n"))
		return
	}
	writeAPIError(w, &apiError{f.Status, "SimulatedError", "refused by a fault."})
}

func writeAPIError(w http.ResponseWriter, p *apiError) {
	type body struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    int     `json:"code"`
	}
	writeJSON(w, p.status, struct {
		Error body `json:"error"`
	}{body{p.message, p.kind, nil, p.status}})
}

func writeJSON(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(mustEncode(value))
}
