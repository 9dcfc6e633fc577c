package ingress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"

	"berth/internal/body"
	"berth/internal/openai"
	"berth/routers"
)

// maxControlAnswer is how much of a replica's answer to a control call is shown.
const maxControlAnswer = 1 << 20

// controlAnswer is what one replica said to a control call.
type controlAnswer struct {
	Replica string `json:"replica"`
	Status  int    `json:"status,omitempty"`
	Body    any    `json:"body,omitempty"`
	Error   string `json:"error,omitempty"` // where there is no answer
}

// control sends a call that manages engines to every replica of a model at the same time, without slots, and answers with what
// each of them said: 200 if that was a success everywhere, else 502. The model is the one that the query or the body names.
func (s *Server) control(w http.ResponseWriter, r *http.Request) {
	if !openai.IsCleanPath(r.URL.Path) || !openai.IsManagementPath(r.URL.Path) {
		answerFor(errUnknownPath).write(w, r)
		return
	}
	t := s.registry.table.Load()
	content, err := io.ReadAll(http.MaxBytesReader(w, r.Body, t.config.HTTP.MaxBodyBytes))
	var m *model
	switch tooLarge, _ := errors.AsType[*http.MaxBytesError](err); {
	case tooLarge != nil:
		err = body.TooLarge(t.config.HTTP.MaxBodyBytes)
	case err != nil:
		err = body.ErrAborted
	default:
		m, err = t.controlled(r.URL.Query().Get("model"), content)
	}
	if err != nil {
		answerFor(err).write(w, r)
		return
	}
	replies := m.router.Broadcast(r.Context(), func(ctx context.Context) *http.Request { return controlCall(ctx, r, content) })
	status, answers := http.StatusOK, make([]controlAnswer, len(replies))
	for i, reply := range replies {
		answers[i] = controlReply(reply)
		if answers[i].Status/100 != 2 {
			status = http.StatusBadGateway
		}
	}
	s.log.Info("control call", "method", r.Method, "path", r.URL.Path, "model", m.config.ID, "status", status)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"model": m.config.ID, "replicas": answers})
}

// controlled finds the model of a control call.
func (t *table) controlled(name string, body []byte) (*model, error) {
	if name == "" && gjson.ValidBytes(body) {
		name = gjson.GetBytes(body, "model").String()
	}
	switch {
	case name != "":
		if m := t.find(name); m != nil {
			return m, nil
		}
		return nil, unknownModel(name)
	case len(t.models) == 1:
		return t.models[0], nil
	default:
		return nil, errModelRequired
	}
}

// controlCall is the operator's call as a replica is to see it: without the query's model, which is meant for berth.
func controlCall(ctx context.Context, in *http.Request, body []byte) *http.Request {
	var query []string
	for pair := range strings.SplitSeq(in.URL.RawQuery, "&") {
		if name, _, _ := strings.Cut(pair, "="); name != "model" && pair != "" {
			query = append(query, pair)
		}
	}
	out := outgoing(ctx, in)
	out.URL.RawQuery, out.ContentLength = strings.Join(query, "&"), int64(len(body))
	if len(body) > 0 {
		out.Body = io.NopCloser(bytes.NewReader(body))
	}
	return out
}

func controlReply(reply routers.Reply) controlAnswer {
	a := controlAnswer{Replica: reply.Replica.ID()}
	if reply.Err != nil {
		a.Error = reply.Err.Error()
		return a
	}
	defer reply.Response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Response.Body, maxControlAnswer))
	a.Status = reply.Response.StatusCode
	switch {
	case err != nil:
		a.Status, a.Error = 0, err.Error()
	case json.Valid(text):
		a.Body = json.RawMessage(text)
	case len(text) > 0:
		a.Body = string(text)
	}
	return a
}
