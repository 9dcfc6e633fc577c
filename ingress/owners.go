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

// responseOwners maps stored responses to the replicas that hold them, for the last maxOwners
// responses. Engines keep stored responses in their own memory, so later requests for a response
// must reach the same replica. Entries are hints: a replica may have left or restarted since.
//
// The zero value is ready to use. Any goroutine may call the methods, which do not block: mu is
// held for a few map operations, never for I/O.
type responseOwners struct {
	mu       sync.Mutex // guards replicas
	replicas recentMap[*llmserver.Replica]
}

const (
	maxOwners     = 1 << 16
	maxResponseID = 128
)

// owner returns the last known replica of a response, or nil. The replica may have left since.
func (o *responseOwners) owner(id string) *llmserver.Replica {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.replicas.values[id]
}

// ownerAmong returns the last known replica of a response and the model of that replica. Both are
// nil if no current member of these models' routers is known to hold the response. Callers pass the
// models allowed for the client's key, so that no client reaches another one's models.
func (o *responseOwners) ownerAmong(id string, models []*model) (*model, *llmserver.Replica) {
	if owner := o.owner(id); owner != nil {
		for _, m := range models {
			if slices.Contains(m.router.Members(), owner) {
				return m, owner
			}
		}
	}
	return nil, nil
}

// setOwner records r as the owner of a response, in place of an earlier owner. The oldest entry is
// dropped if there are maxOwners already; a later request for that response costs a lookup.
func (o *responseOwners) setOwner(id string, r *llmserver.Replica) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.replicas.put(id, r, maxOwners)
}

// sniffID wraps the body of a successful response to record r as the owner as soon as the ID has
// been read. No byte of the body is delayed or changed.
func (o *responseOwners) sniffID(resp *http.Response, r *llmserver.Replica) {
	if resp.StatusCode/100 == 2 {
		resp.Body = &idSniffer{ReadCloser: resp.Body, found: func(id string) { o.setOwner(id, r) }}
	}
}

// An idSniffer passes a response body through and searches the first bytes for the response's ID.
// The body is JSON, or an event stream with the response in the first event. Like any body, an
// idSniffer is read by one goroutine.
type idSniffer struct {
	io.ReadCloser
	found func(id string) // nil when the search has ended
	start []byte          // of the body
}

// maxSniffedBytes bounds the part of a body that an idSniffer copies and searches. The ID is one of
// the first members in practice.
const maxSniffedBytes = 4 << 10

// Read reads from the body. After the search has ended, the only cost is one comparison.
func (s *idSniffer) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if s.found != nil {
		s.sniff(p[:n])
	}
	return n, err
}

// sniff searches p together with the bytes before it, as the ID may be split between reads. It ends
// the search after a match or after maxSniffedBytes.
func (s *idSniffer) sniff(p []byte) {
	s.start = append(s.start, p[:min(len(p), maxSniffedBytes-len(s.start))]...)
	id := findResponseID(s.start)
	if id != "" {
		s.found(id)
	}
	if id != "" || len(s.start) == maxSniffedBytes {
		s.found, s.start = nil, nil
	}
}

// findResponseID returns the first "id" member in JSON text with the ID of a response; IDs of items
// in the response have other prefixes. It returns "" if text has none, or ends within the ID. A
// plain search is exact enough: inside a string every quote is escaped, so a quoted "id" followed
// by a colon is always a member name.
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

// storedResponseID returns the ID in the path of a stored response. ok is false for other paths and
// for IDs that isResponseID rejects.
func storedResponseID(path string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(path, "/v1"), "/responses/")
	id, _, _ = strings.Cut(rest, "/")
	return id, ok && isResponseID(id)
}

// isResponseID reports whether id may be an ID: short, and written alike in JSON, in a path and in
// a log. The IDs "." and ".." would be path segments with a meaning of their own.
func isResponseID(id string) bool {
	for _, c := range []byte(id) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return id != "" && len(id) <= maxResponseID && id != "." && id != ".."
}
