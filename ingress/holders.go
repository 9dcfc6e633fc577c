package ingress

import (
	"bytes"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"

	"berth/llmserver"
)

// holders remembers which replica holds which stored response, for the last maxHolders of them.
type holders struct {
	mu   sync.Mutex
	of   map[string]*llmserver.Replica
	ids  []string // a ring: the oldest is overwritten
	next int
}

const (
	maxHolders    = 1 << 16
	maxResponseID = 128
)

// find is the replica that was last seen to hold a response; nil if none was.
func (h *holders) find(id string) *llmserver.Replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.of[id]
}

// among returns the replica of these models that was last seen to hold a response, and its model; nil
// if none was.
func (h *holders) among(id string, models []*model) (*model, *llmserver.Replica) {
	if known := h.find(id); known != nil {
		for _, m := range models {
			if slices.Contains(m.router.Members(), known) {
				return m, known
			}
		}
	}
	return nil, nil
}

func (h *holders) put(id string, r *llmserver.Replica) {
	id = strings.Clone(id) // it may be a piece of a request's head, all of which would stay with it
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil {
		h.of = make(map[string]*llmserver.Replica)
	}
	if _, known := h.of[id]; !known {
		if len(h.ids) < maxHolders {
			h.ids = append(h.ids, "")
		}
		delete(h.of, h.ids[h.next])
		h.ids[h.next] = id
		h.next = (h.next + 1) % maxHolders
	}
	h.of[id] = r
}

// listen has the id of a response noted that passes on its way to a client. Not a byte of it is held back.
func (h *holders) listen(resp *http.Response, r *llmserver.Replica) {
	if resp.StatusCode/100 == 2 {
		resp.Body = &idListener{ReadCloser: resp.Body, found: func(id string) { h.put(id, r) }}
	}
}

// idListener looks for the id of a response in the first bytes of a body that is read through it: whole JSON, or an event stream
// whose first event holds the response.
type idListener struct {
	io.ReadCloser
	found func(id string) // nil once there is nothing to look for
	head  []byte
}

// maxIDHead is how far from the start of an answer its id is looked for.
const maxIDHead = 4 << 10

func (l *idListener) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if l.found != nil {
		l.look(p[:n])
	}
	return n, err
}

func (l *idListener) look(p []byte) {
	l.head = append(l.head, p[:min(len(p), maxIDHead-len(l.head))]...)
	id := responseID(l.head)
	if id != "" {
		l.found(id)
	}
	if id != "" || len(l.head) == maxIDHead {
		l.found, l.head = nil, nil
	}
}

// responseID finds the first member "id" in JSON text that names a response: those of its items begin otherwise. Inside a
// string a quote is always escaped, so that the name with both its quotes and a colon behind them can only be a name.
func responseID(text []byte) string {
	for {
		_, rest, ok := bytes.Cut(text, []byte(`"id"`))
		if !ok {
			return ""
		}
		text = rest
		value, ok := bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
		value, quoted := bytes.CutPrefix(bytes.TrimLeft(value, " \t\r\n"), []byte(`"`))
		id, _, whole := bytes.Cut(value, []byte(`"`))
		if ok && quoted && whole && bytes.HasPrefix(id, []byte("resp")) && saneResponseID(string(id)) {
			return string(id)
		}
	}
}

// saneResponseID tells an id that is the same in JSON, in a path and in a log.
func saneResponseID(id string) bool {
	for _, c := range []byte(id) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return id != "" && len(id) <= maxResponseID && id != "." && id != ".."
}
