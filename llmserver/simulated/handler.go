package simulated

import (
	"encoding/json"
	"errors"
	"net/http"
)

// Handler serves the engine:
//
//	POST /v1/chat/completions, /v1/completions, /v1/embeddings
//	GET  /v1/models, /health, /metrics
//	GET  /simulated/stats      Stats
//	POST /simulated/faults     SetFaults; unknown fields are an error
//	POST /simulated/reset      Reset
func (e *Engine) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("POST /v1/chat/completions", e.counted(generate(parseChat)))
	mux.Handle("POST /v1/completions", e.counted(generate(parseCompletion)))
	mux.Handle("POST /v1/embeddings", e.counted(embed))
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

// counted counts a request in, has it answered, and sees that it is counted out on every way.
func (e *Engine) counted(answer func(x *exchange, body []byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		x := &exchange{engine: e, w: w, r: r}
		x.faults, x.replaced = e.faults.hit()
		switch {
		case x.faults.Status != 0:
			e.ledger.refuse()
			x.receive() // a refusal is to be read, so the request is taken off the connection first
			writeRefusal(w, x.faults)
			return
		case !e.ledger.enter(e.config.MaxOngoing):
			x.receive()
			writeProblem(w, &problem{http.StatusServiceUnavailable, "ServiceUnavailableError", "too many requests in flight."})
			return
		}
		defer x.leave(aborted)
		body, err := x.receive()
		if err == nil {
			err = x.hang()
		}
		if err == nil {
			err = answer(x, body)
		}
		if err != nil {
			x.fail(err)
		}
	}
}

func generate(parse func([]byte) (*task, error)) func(*exchange, []byte) error {
	return func(x *exchange, body []byte) error {
		t, err := parse(body)
		if err != nil {
			return err
		}
		if err := x.start(t); err != nil {
			return err
		}
		s := newScript(t)
		if t.stream {
			return x.stream(s)
		}
		return x.whole(s.whole)
	}
}

func embed(x *exchange, body []byte) error {
	e, err := parseEmbedding(body)
	if err != nil {
		return err
	}
	if err := x.start(e.task); err != nil {
		return err
	}
	return x.whole(e.whole)
}

// fail ends an exchange that has no whole answer: with an error if nothing has been sent, else with a broken connection.
func (x *exchange) fail(err error) {
	if errors.Is(err, errCut) {
		return
	}
	if p, ok := errors.AsType[*problem](err); ok {
		x.leave(rejected)
		writeProblem(x.w, p)
		return
	}
	x.leave(aborted)
	if errors.Is(err, errClosed) && x.events == 0 {
		writeProblem(x.w, &problem{http.StatusServiceUnavailable, "ServiceUnavailableError", "the engine is shutting down."})
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
		writeProblem(w, badRequest("%v", err))
		return
	}
	e.SetFaults(f)
}

func writeRefusal(w http.ResponseWriter, f Faults) {
	if f.Garbage {
		w.Header().Set("Content-Type", "text/html")
		w.WriteHeader(f.Status)
		w.Write([]byte("<html><body><h1>It doesn't work!</h1></body></html>\n"))
		return
	}
	writeProblem(w, &problem{f.Status, "SimulatedError", "refused by a fault."})
}

func writeProblem(w http.ResponseWriter, p *problem) {
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
	w.Write(encode(value))
}
