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

// maxControlBody bounds the reported part of a replica's response to a control call.
const maxControlBody = 1 << 20

// controlResult is the JSON form of one replica's response to a control call.
type controlResult struct {
	Replica string `json:"replica"`
	Status  int    `json:"status,omitempty"`
	Body    any    `json:"body,omitempty"`
	Error   string `json:"error,omitempty"` // without a response
}

// serveControl forwards a management call to every replica of a model at once, without slots, and
// responds with the responses of all: 200 if every one was a success, else 502. The query or the
// body names the model.
func (s *Server) serveControl(w http.ResponseWriter, r *http.Request) {
	if !openai.IsCleanPath(r.URL.Path) || !openai.IsManagementPath(r.URL.Path) {
		toAPIError(errUnknownPath).write(w, r)
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
		m, err = t.controlTarget(r.URL.Query().Get("model"), content)
	}
	if err != nil {
		toAPIError(err).write(w, r)
		return
	}
	replies := m.router.Broadcast(r.Context(), func(ctx context.Context) *http.Request { return controlRequest(ctx, r, content) })
	status, results := http.StatusOK, make([]controlResult, len(replies))
	for i, reply := range replies {
		results[i] = newControlResult(reply)
		if results[i].Status/100 != 2 {
			status = http.StatusBadGateway
		}
	}
	s.log.Info("control call", "method", r.Method, "path", r.URL.Path, "model", m.config.ID, "status", status)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(map[string]any{"model": m.config.ID, "replicas": results})
}

// controlTarget returns the model of a control call: name, else the one in the body, else the only
// model.
func (t *table) controlTarget(name string, body []byte) (*model, error) {
	if name == "" && gjson.ValidBytes(body) {
		name = gjson.GetBytes(body, "model").String()
	}
	switch {
	case name != "":
		if m := t.findModel(name); m != nil {
			return m, nil
		}
		return nil, unknownModel(name)
	case len(t.models) == 1:
		return t.models[0], nil
	default:
		return nil, errModelRequired
	}
}

// controlRequest returns the operator's call in the form for replicas: without the model in the
// query, which is meant for berth.
func controlRequest(ctx context.Context, in *http.Request, body []byte) *http.Request {
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

// newControlResult reads and closes the response of a reply.
func newControlResult(reply routers.Reply) controlResult {
	result := controlResult{Replica: reply.Replica.ID()}
	if reply.Err != nil {
		result.Error = reply.Err.Error()
		return result
	}
	defer reply.Response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Response.Body, maxControlBody))
	result.Status = reply.Response.StatusCode
	switch {
	case err != nil:
		result.Status, result.Error = 0, err.Error()
	case json.Valid(text):
		result.Body = json.RawMessage(text)
	case len(text) > 0:
		result.Body = string(text)
	}
	return result
}
