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
type responseOwners struct {
	mu       sync.Mutex
	replicas map[string]*llmserver.Replica
	ids      []string // a ring: the oldest is overwritten
	next     int
}

const (
	maxOwners     = 1 << 16
	maxResponseID = 128
)

// find is the replica that was last seen to hold a response; nil if none was.
func (h *responseOwners) owner(id string) *llmserver.Replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.replicas[id]
}

// among returns the replica of these models that was last seen to hold a response, and its model; nil
// if none was.
func (h *responseOwners) ownerAmong(id string, models []*model) (*model, *llmserver.Replica) {
	if known := h.owner(id); known != nil {
		for _, m := range models {
			if slices.Contains(m.router.Members(), known) {
				return m, known
			}
		}
	}
	return nil, nil
}

func (h *responseOwners) setOwner(id string, r *llmserver.Replica) {
	id = strings.Clone(id) // it may be a piece of a request's head, all of which would stay with it
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.replicas == nil {
		h.replicas = make(map[string]*llmserver.Replica)
	}
	if _, known := h.replicas[id]; !known {
		if len(h.ids) < maxOwners {
			h.ids = append(h.ids, "")
		}
		delete(h.replicas, h.ids[h.next])
		h.ids[h.next] = id
		h.next = (h.next + 1) % maxOwners
	}
	h.replicas[id] = r
}

// listen has the id of a response noted that passes on its way to a client. Not a byte of it is held back.
func (h *responseOwners) sniffID(resp *http.Response, r *llmserver.Replica) {
	if resp.StatusCode/100 == 2 {
		resp.Body = &idSniffer{ReadCloser: resp.Body, found: func(id string) { h.setOwner(id, r) }}
	}
}

// idListener looks for the id of a response in the first bytes of a body that is read through it: whole JSON, or an event stream
// whose first event holds the response.
type idSniffer struct {
	io.ReadCloser
	found func(id string) // nil once there is nothing to look for
	head  []byte
}

// maxIDHead is how far from the start of an answer its id is looked for.
const maxSniffedBytes = 4 << 10

func (l *idSniffer) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	if l.found != nil {
		l.sniff(p[:n])
	}
	return n, err
}

func (l *idSniffer) sniff(p []byte) {
	l.head = append(l.head, p[:min(len(p), maxSniffedBytes-len(l.head))]...)
	id := findResponseID(l.head)
	if id != "" {
		l.found(id)
	}
	if id != "" || len(l.head) == maxSniffedBytes {
		l.found, l.head = nil, nil
	}
}

// responseID finds the first member "id" in JSON text that names a response: those of its items begin otherwise. Inside a
// string a quote is always escaped, so that the name with both its quotes and a colon behind them can only be a name.
func findResponseID(text []byte) string {
	for {
		_, rest, ok := bytes.Cut(text, []byte(`"id"`))
		if !ok {
			return ""
		}
		text = rest
		value, ok := bytes.CutPrefix(bytes.TrimLeft(rest, " \t\r\n"), []byte(":"))
		value, quoted := bytes.CutPrefix(bytes.TrimLeft(value, " \t\r\n"), []byte(`"`))
		id, _, whole := bytes.Cut(value, []byte(`"`))
		if ok && quoted && whole && bytes.HasPrefix(id, []byte("resp")) && isResponseID(string(id)) {
			return string(id)
		}
	}
}

// saneResponseID tells an id that is the same in JSON, in a path and in a log.
func isResponseID(id string) bool {
	for _, c := range []byte(id) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && !isDigit(c) && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return id != "" && len(id) <= maxResponseID && id != "." && id != ".."
}
