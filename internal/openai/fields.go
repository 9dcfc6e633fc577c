package openai

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// The errors of a request body. Their texts are sentences for the client.
var (
	ErrEmptyBody      = errors.New("The request body is empty; send a JSON object.")
	ErrNotObject      = errors.New("The request body must be a JSON object.")
	ErrTooDeep        = fmt.Errorf("The request body is nested deeper than %d levels; reduce the nesting.", maxDepth)
	ErrDuplicateModel = errors.New("The request body has more than one 'model'; send only one.")
	ErrModelNotString = errors.New("The 'model' in the request body must be a string.")
)

// A SyntaxError reports where a body stops being JSON. The text is a sentence for the client.
type SyntaxError struct {
	Offset  int64  // of the offending byte, from 0; the length of the body after an unexpected end
	Problem string // found at the offset, such as "unexpected end"
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("The request body is not valid JSON: %s at byte %d; correct the body.", e.Problem, e.Offset)
}

// A Span is the byte range [Start, End) of a raw value in a body. The zero Span stands for an
// absent value.
type Span struct{ Start, End int }

// Absent reports whether the body has no such value.
func (s Span) Absent() bool { return s.End == 0 }

// Of returns the bytes of the value, which alias body; none if the value is absent.
func (s Span) Of(body []byte) []byte { return body[s.Start:s.End] }

// Text returns the decoded string of a JSON value; "" if the value is absent or not a string.
func (s Span) Text(body []byte) string {
	var text string
	if raw := s.Of(body); len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}

// Fields are the top-level members of a request body used for routing, found in one pass. Names
// match exactly; of a repeated name the last value counts. A null counts as absent, but ModelAt is
// also set for a null model. Of a form only Model, ModelAt and Stream are set.
type Fields struct {
	Model   []byte // the decoded name; nil if absent or null; may alias the body
	ModelAt Span   // the raw value of the model
	Stream  bool
	Form    bool // the body is a multipart form, not JSON

	// The sources of the routing text. Query goes by several names: see fieldFor.
	Messages, Prompt, Input, Query Span

	System             Span // precedes the messages: Anthropic's system, or instructions of the Responses API
	PreviousResponseID Span
	PromptCacheKey     Span
	User               Span

	CacheSalt, Tools Span // further values without which engines do not share a cached prefix

	Store, Background Span // whether the response stays at the engine: see Stores

	streamAt Span
}

// RoutingText returns the prompt of the request: the first present value of messages, prompt, input
// and query.
func (f Fields) RoutingText() Span { return cmp.Or(f.Messages, f.Prompt, f.Input, f.Query) }

// Stores reports whether a POST of this body to path may create something that stays at the
// replica after the response: a stored response or completion, a background response, a job or a
// file. A response of the Responses API is stored unless the request says otherwise. Nothing is
// known about paths other than the inference paths, so they count as storing.
func (f Fields) Stores(path string, body []byte) bool {
	switch {
	case !IsInferencePath(path), string(f.Background.Of(body)) == "true":
		return true
	case CreatesStored(path):
		return string(f.Store.Of(body)) != "false"
	default:
		return string(f.Store.Of(body)) == "true"
	}
}

// EncodeModel returns a model name as a raw value of this kind of body: plain in a form, quoted in
// JSON.
func (f Fields) EncodeModel(name string) []byte {
	if f.Form {
		return []byte(name)
	}
	value, err := json.Marshal(name)
	if err != nil {
		panic("BUG: a string does not encode: " + err.Error())
	}
	return value
}

// ScanBody returns the fields of a body whose header passed CheckHeader. During the scan of JSON
// the prompt is hashed into h, unless h is nil.
//
// Errors are those of this package: of a JSON body a *SyntaxError before any other.
func ScanBody(header http.Header, body []byte, h *PromptHasher) (Fields, error) {
	if contentType := header.Get("Content-Type"); isForm(contentType) {
		return scanForm(contentType, body)
	}
	return scanJSON(body, h)
}

// scanJSON validates a body as a JSON object and returns its fields. Only a model name with
// escapes, or an error, causes an allocation.
func scanJSON(body []byte, h *PromptHasher) (Fields, error) {
	s := scanner{src: body}
	s.skipSpace()
	if s.pos == len(body) {
		return Fields{}, ErrEmptyBody
	}
	if s.peek() != '{' {
		err := s.skipValue()
		if err == nil {
			err = s.expectEnd()
		}
		return Fields{}, cmp.Or(err, ErrNotObject)
	}
	var f Fields
	var invalid error // reported only if the body is valid JSON
	more, err := s.beginValue()
	for more && err == nil {
		field, start := f.fieldFor(s.name.Of(body)), s.pos
		if h != nil {
			err = h.hashMember(&s, &f, field)
		} else {
			err = s.skipValue()
		}
		if err == nil {
			invalid = cmp.Or(invalid, f.setField(field, Span{start, s.pos}, body))
			more, err = s.nextValue()
		}
	}
	if err == nil {
		err = s.expectEnd()
	}
	return f, cmp.Or(err, invalid)
}

// maxNameLen is the length of the longest name known to fieldFor.
const maxNameLen = len("previous_response_id")

// fieldFor returns the field of f for a member name as written in the body; nil if there is none.
func (f *Fields) fieldFor(name []byte) *Span {
	var buf [maxNameLen]byte
	switch string(unescapeName(name, &buf)) {
	case "model":
		return &f.ModelAt
	case "stream":
		return &f.streamAt
	case "messages":
		return &f.Messages
	case "prompt":
		return &f.Prompt
	case "input":
		return &f.Input
	case "query", "queries", "text", "text_1", "inputs", "input_ids": // reranking, scoring, classification; SGLang, TGI
		return &f.Query
	case "system", "instructions":
		return &f.System
	case "previous_response_id":
		return &f.PreviousResponseID
	case "prompt_cache_key":
		return &f.PromptCacheKey
	case "user":
		return &f.User
	case "cache_salt":
		return &f.CacheSalt
	case "tools":
		return &f.Tools
	case "store":
		return &f.Store
	case "background":
		return &f.Background
	default:
		return nil
	}
}

// setField records the value of a member in its field, the result of fieldFor.
func (f *Fields) setField(field *Span, value Span, body []byte) error {
	switch field {
	case nil:
		return nil
	case &f.ModelAt:
		return f.setModel(value, body)
	}
	*field = value
	if string(value.Of(body)) == "null" {
		*field = Span{}
	}
	if field == &f.streamAt {
		f.Stream = string(value.Of(body)) == "true"
	}
	return nil
}

func (f *Fields) setModel(value Span, body []byte) error {
	if !f.ModelAt.Absent() {
		return ErrDuplicateModel
	}
	f.ModelAt = value
	switch raw := value.Of(body); {
	case raw[0] == 'n':
		return nil
	case raw[0] != '"':
		return ErrModelNotString
	case bytes.IndexByte(raw, '\\') < 0:
		f.Model = raw[1 : len(raw)-1]
		return nil
	default:
		var name string
		if err := json.Unmarshal(raw, &name); err != nil {
			panic("BUG: a scanned string does not decode: " + err.Error())
		}
		f.Model = []byte(name)
		return nil
	}
}

// unescapeName returns a member name without escapes, decoded into buf if raw has any. It returns
// nil for names that fieldFor cannot know: the known ones fit buf, and the only escape for their
// characters is \u00xx.
func unescapeName(raw []byte, buf *[maxNameLen]byte) []byte {
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	n := 0
	for ; len(raw) > 0; n++ {
		if n == len(buf) {
			return nil
		}
		if raw[0] != '\\' {
			buf[n], raw = raw[0], raw[1:]
			continue
		}
		var unit [2]byte
		if raw[1] != 'u' {
			return nil
		}
		if _, err := hex.Decode(unit[:], raw[2:6]); err != nil || unit[0] != 0 {
			return nil
		}
		buf[n], raw = unit[1], raw[6:]
	}
	return buf[:n]
}
