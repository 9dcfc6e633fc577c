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

// responseOwners remembers which replica holds which stored response, for the last maxOwners
// responses. The zero value is ready to use. Any goroutine may call its methods, which do not block.
type responseOwners struct {
	mu       sync.Mutex // guards what follows
	replicas map[string]*llmserver.Replica
	ids      []string // the keys of replicas; a ring, in which next is the oldest once it is full
	next     int
}

const (
	maxOwners     = 1 << 16
	maxResponseID = 128
)

// owner returns the replica that last held a response, or nil. The replica may have left since.
func (o *responseOwners) owner(id string) *llmserver.Replica {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.replicas[id]
}

// ownerAmong returns the replica of these models that last held a response, and its model, or nil.
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

// setOwner records that r holds a response. It keeps a copy of id, since id may be part of a request
// header that would otherwise stay in memory as a whole.
func (o *responseOwners) setOwner(id string, r *llmserver.Replica) {
	id = strings.Clone(id)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.replicas == nil {
		o.replicas = make(map[string]*llmserver.Replica)
	}
	if _, known := o.replicas[id]; !known {
		if len(o.ids) < maxOwners {
			o.ids = append(o.ids, "")
		}
		delete(o.replicas, o.ids[o.next])
		o.ids[o.next] = id
		o.next = (o.next + 1) % maxOwners
	}
	o.replicas[id] = r
}

// sniffID records r as the owner of a successful response, once the client reads the ID in its body.
// No byte of the body is held back.
func (o *responseOwners) sniffID(resp *http.Response, r *llmserver.Replica) {
	if resp.StatusCode/100 == 2 {
		resp.Body = &idSniffer{ReadCloser: resp.Body, found: func(id string) { o.setOwner(id, r) }}
	}
}

// An idSniffer passes a response body through and looks for the response's ID in its first bytes. The
// body is JSON, or an event stream whose first event holds the response.
type idSniffer struct {
	io.ReadCloser
	found func(id string) // nil when the search has ended
	start []byte          // of the body
}

// maxSniffedBytes is how much of a body an idSniffer searches.
const maxSniffedBytes = 4 << 10

func (s *idSniffer) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if s.found != nil {
		s.sniff(p[:n])
	}
	return n, err
}

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

// findResponseID returns the first "id" member in JSON text that is the ID of a response; IDs of its
// items have other prefixes. Inside a string every quote is escaped, so "id" in quotes with a colon
// behind it is always a member name.
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

// storedResponseID returns the ID in the path of a stored response, and whether path is such a path.
func storedResponseID(path string) (id string, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(path, "/v1"), "/responses/")
	id, _, _ = strings.Cut(rest, "/")
	return id, ok && isResponseID(id)
}

// isResponseID reports whether id is written alike in JSON, in a path and in a log.
func isResponseID(id string) bool {
	for _, c := range []byte(id) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' && c != '.' {
			return false
		}
	}
	return id != "" && len(id) <= maxResponseID && id != "." && id != ".."
}
