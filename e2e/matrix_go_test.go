package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"testing"
)

// inProcessRun is a run of a script by a client in this process.
type inProcessRun struct {
	*testing.T
	prompt      string
	acknowledge bool
	retries     *int
	ack         func()
	outcome     map[string]any
}

// runInProcess runs all scripts whose operation the client supports. client returns the supported
// operations.
func runInProcess(t *testing.T, variant, ackURL string, scripts []script, client func(*inProcessRun) map[string]func() error) func() []result {
	t.Helper()
	var results []result
	for _, a := range scripts {
		s := &inProcessRun{T: t, prompt: "|" + a.name + "|", acknowledge: a.acknowledge, outcome: map[string]any{}}
		s.ack = func() {
			resp, err := newClient(t, false).Get(ackURL)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		var more struct{ Retries *int }
		if err := json.Unmarshal([]byte("{"+a.options+"}"), &more); err != nil {
			t.Fatal(err)
		}
		s.retries = more.Retries
		do, can := client(s)[a.operation]
		if !can {
			continue
		}
		if err := do(); err != nil {
			s.outcome["error"] = describeError(err)
		}
		text, err := json.Marshal(s.outcome)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, result{Variant: variant, Script: a.name, Outcome: text})
	}
	return func() []result { return results }
}

// set sets a value of the outcome.
func (s *inProcessRun) set(name string, value any) { s.outcome[name] = value }

// appendTo appends to a list of the outcome.
func (s *inProcessRun) appendTo(name string, value any) {
	list, _ := s.outcome[name].([]any)
	s.outcome[name] = append(list, value)
}

// receiveText appends a text to the outcome and acknowledges the text if the script requires it.
func (s *inProcessRun) receiveText(text string) {
	before, _ := s.outcome["text"].(string)
	s.outcome["text"] = before + text
	if text != "" && s.acknowledge {
		s.ack()
	}
}

// describeError returns the information that an SDK's user gets from an error.
func describeError(err error) map[string]any {
	if fields := describeOfficialError(err); fields != nil {
		return fields
	}
	if fields := describeCommunityError(err); fields != nil {
		return fields
	}
	return map[string]any{"class": reflect.TypeOf(err).String(), "message": err.Error()}
}

// addHeaders adds the response headers relevant to clients.
func addHeaders(fields map[string]any, h http.Header) map[string]any {
	for _, name := range []string{"Retry-After", "Retry-After-Ms", "X-Should-Retry", "X-Ratelimit-Remaining-Requests", "Www-Authenticate", "Openai-Processing-Ms", "Content-Type"} {
		fields[name] = h.Get(name)
	}
	fields["request_id"] = h.Get("X-Request-Id") != ""
	return fields
}
