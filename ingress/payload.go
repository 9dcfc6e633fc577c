package ingress

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// What is wrong with a request body, in sentences for the client.
var (
	errEmptyBody      = errors.New("The request body is empty.")
	errNotObject      = errors.New("The request body must be a JSON object.")
	errTooDeep        = fmt.Errorf("The request body is nested deeper than %d levels.", maxDepth)
	errDuplicateModel = errors.New("The request body has more than one 'model'.")
	errModelNotString = errors.New("The 'model' in the request body must be a string.")
)

// A syntaxError says where a body stops being JSON.
type syntaxError struct {
	Offset int64 // of the offending byte, from 0; the length of the body if it ended too early
	What   string
}

func (e *syntaxError) Error() string {
	return fmt.Sprintf("The request body is not valid JSON: %s at byte %d.", e.What, e.Offset)
}

// A span is where a raw JSON value lies in a body. The zero span is that of an absent value.
type span struct{ start, end int }

func (s span) absent() bool { return s.end == 0 }

// of returns the value's bytes, which alias the body.
func (s span) of(body []byte) []byte { return body[s.start:s.end] }

// A payload is what one pass over a request body finds at its top level. Names match exactly; of a repeated name the
// last value counts. Null counts as absent, but modelAt tells where a null model lies.
type payload struct {
	model   []byte // the decoded name, nil if absent; may alias the body
	modelAt span
	stream  bool
	form    bool // it is a multipart form, not JSON

	streamAt                       span
	messages, prompt, input, query span // the sources of routing text, query under several names
	system                         span // what stands before it: Anthropic's system, or the instructions of responses
	previous                       span // the id of the response that is gone on with
	promptCacheKey, user           span
	cacheSalt, tools               span // what else tells prompts apart
}

// text returns the value that prompts the model, the first there is of messages, prompt, input and query.
func (p payload) text() span { return cmp.Or(p.messages, p.prompt, p.input, p.query) }

// maxName is the longest name of a member that is looked for.
const maxName = len("previous_response_id")

// scanPayload validates a body as a JSON object and finds its payload. It allocates only for a model that is written
// with escapes, and for errors: a *syntaxError or one of the above. Broken JSON is told before anything else.
//
// The same pass hashes the prompt into h, unless that is nil.
func scanPayload(body []byte, h *promptHasher) (payload, error) {
	s := scanner{src: body}
	s.space()
	if s.pos == len(body) {
		return payload{}, errEmptyBody
	}
	if s.peek() != '{' {
		err := s.value()
		if err == nil {
			err = s.end()
		}
		return payload{}, cmp.Or(err, errNotObject)
	}
	var p payload
	var fault error
	more, err := s.begin()
	for more && err == nil {
		at, start := p.place(s.name.of(body)), s.pos
		if h != nil {
			err = h.member(&s, &p, at)
		} else {
			err = s.value()
		}
		if err == nil {
			fault = cmp.Or(fault, p.keep(at, span{start, s.pos}, body))
			more, err = s.next()
		}
	}
	if err == nil {
		err = s.end()
	}
	return p, cmp.Or(err, fault)
}

// place is where the member of that name is noted, nil if nobody asks for it.
func (p *payload) place(name []byte) *span {
	var buf [maxName]byte
	switch string(plainName(name, &buf)) {
	case "model":
		return &p.modelAt
	case "stream":
		return &p.streamAt
	case "messages":
		return &p.messages
	case "prompt":
		return &p.prompt
	case "input":
		return &p.input
	case "query", "queries", "text", "text_1", "inputs", "input_ids": // to rank, score, classify; SGLang, TGI
		return &p.query
	case "system", "instructions":
		return &p.system
	case "previous_response_id":
		return &p.previous
	case "prompt_cache_key":
		return &p.promptCacheKey
	case "user":
		return &p.user
	case "cache_salt":
		return &p.cacheSalt
	case "tools":
		return &p.tools
	default:
		return nil
	}
}

// keep notes one member of the body in its place.
func (p *payload) keep(at *span, value span, body []byte) error {
	switch at {
	case nil:
		return nil
	case &p.modelAt:
		return p.keepModel(value, body)
	}
	*at = value
	if string(value.of(body)) == "null" {
		*at = span{}
	}
	if at == &p.streamAt {
		p.stream = string(value.of(body)) == "true"
	}
	return nil
}

func (p *payload) keepModel(value span, body []byte) error {
	if !p.modelAt.absent() {
		return errDuplicateModel
	}
	p.modelAt = value
	switch raw := value.of(body); {
	case raw[0] == 'n':
		return nil
	case raw[0] != '"':
		return errModelNotString
	case bytes.IndexByte(raw, '\\') < 0:
		p.model = raw[1 : len(raw)-1]
		return nil
	default:
		var name string
		if err := json.Unmarshal(raw, &name); err != nil {
			panic("BUG: a scanned string does not decode: " + err.Error())
		}
		p.model = []byte(name)
		return nil
	}
}

// plainName returns a member name without escapes, decoded into buf if it has any; nil if it is none of ours, which fit
// buf and hold only characters whose one escape is \u00xx.
func plainName(raw []byte, buf *[maxName]byte) []byte {
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
