package ingress

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
)

// errorBody decodes OpenAI's error object.
type errorBody struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    *string `json:"code"`
	} `json:"error"`
}

// anthropicError decodes the error object of Anthropic's API.
type anthropicError struct {
	Type  string `json:"type"`
	Error struct {
		Type    string `json:"type"`
		Message string `json:"message"`
	} `json:"error"`
	RequestID string `json:"request_id"`
}

// isOpenAIError checks that text is an ErrorResponse of the official API description, with no
// further keys.
func isOpenAIError(t *testing.T, text string) {
	t.Helper()
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.DisallowUnknownFields()
	var body struct {
		Error struct {
			Message, Type *string
			Param, Code   json.RawMessage // a string or null, but there
		}
	}
	isText := func(raw json.RawMessage) bool { return len(raw) > 2 && raw[0] == '"' || string(raw) == "null" }
	if err := decoder.Decode(&body); err != nil || body.Error.Message == nil || body.Error.Type == nil ||
		*body.Error.Message == "" || !isText(body.Error.Param) || !isText(body.Error.Code) {
		t.Errorf("%s is no error: %v", text, err)
	}
}

func TestAPIErrorMatchesTheOfficialDescription(t *testing.T) {
	shape := func(a apiError) {
		isOpenAIError(t, string(a.object().JSON()))
	}
	for _, row := range errorTable {
		shape(toAPIError(row.err))
	}
	shape(toAPIError(io.ErrUnexpectedEOF))
	f := serve(t, modelOn("m", refusing(1)))
	for _, r := range []reply{f.get("/v1/models/x"), f.get("/"), f.chat("m"), f.chat("x"), f.post("/v1/completions", "{"), f.operate("POST", "/x", "")} {
		isOpenAIError(t, r.body)
	}
}

// The event that is added to a broken stream is an error in the form of that stream's API, as the
// last event.
func TestAPIErrorEventOfABrokenStreamHasTheFormOfItsAPI(t *testing.T) {
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, "data: {}\n\n")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})))
	for _, client := range []*http.Client{f.h1, f.h2} {
		for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/messages"} {
			r := f.do(t.Context(), client, "POST", path, strings.NewReader(chat("m")))
			event, ok := strings.CutPrefix(r.body, "data: {}\n\n")
			if r.err == nil || !ok || !strings.HasSuffix(event, "\n\n") {
				t.Errorf("%s ended with %q and %v", path, r.body, r.err)
			}
			if path != "/v1/messages" {
				isOpenAIError(t, strings.TrimPrefix(event, "data: "))
				continue
			}
			var e anthropicError
			data, ok := strings.CutPrefix(event, "event: error\ndata: ")
			if err := json.Unmarshal([]byte(data), &e); err != nil || !ok || e.Type != "error" || e.Error.Type != "api_error" || e.Error.Message == "" {
				t.Errorf("%s ended with %q: %v", path, event, err)
			}
		}
	}
}
