package e2e

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"testing"
)

// inProcess is a scene as a client in this process plays it.
type inProcess struct {
	*testing.T
	prompt  string
	hearing bool
	retries *int
	heard   func()
	outcome map[string]any
}

// playInProcess has a client play all scenes that it can: for each it returns what it can do.
func playInProcess(t *testing.T, way, heard string, acts []act, client func(*inProcess) map[string]func() error) func() []result {
	t.Helper()
	var results []result
	for _, a := range acts {
		s := &inProcess{T: t, prompt: "|" + a.name + "|", hearing: a.hearing, outcome: map[string]any{}}
		s.heard = func() {
			resp, err := newClient(t, false).Get(heard)
			if err != nil {
				t.Fatal(err)
			}
			io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		var more struct{ Retries *int }
		if err := json.Unmarshal([]byte("{"+a.opts+"}"), &more); err != nil {
			t.Fatal(err)
		}
		s.retries = more.Retries
		do, can := client(s)[a.do]
		if !can {
			continue
		}
		if err := do(); err != nil {
			s.outcome["error"] = told(err)
		}
		text, err := json.Marshal(s.outcome)
		if err != nil {
			t.Fatal(err)
		}
		results = append(results, result{Way: way, Scene: a.name, Outcome: text})
	}
	return func() []result { return results }
}

// tell writes down a fact about the outcome.
func (s *inProcess) tell(name string, value any) { s.outcome[name] = value }

// add adds to a list of such facts.
func (s *inProcess) add(name string, value any) {
	list, _ := s.outcome[name].([]any)
	s.outcome[name] = append(list, value)
}

// hear takes in a text.
func (s *inProcess) hear(text string) {
	before, _ := s.outcome["text"].(string)
	s.outcome["text"] = before + text
	if text != "" && s.hearing {
		s.heard()
	}
}

// told is what a user can learn from an error.
func told(err error) map[string]any {
	if said := officialError(err); said != nil {
		return said
	}
	if said := communityError(err); said != nil {
		return said
	}
	return map[string]any{"class": reflect.TypeOf(err).String(), "message": err.Error()}
}

// withHeaders adds what a client may want to know of an answer's header.
func withHeaders(said map[string]any, h http.Header) map[string]any {
	for _, name := range []string{"Retry-After", "Retry-After-Ms", "X-Should-Retry", "X-Ratelimit-Remaining-Requests", "Www-Authenticate", "Openai-Processing-Ms", "Content-Type"} {
		said[name] = h.Get(name)
	}
	said["request_id"] = h.Get("X-Request-Id") != ""
	return said
}
