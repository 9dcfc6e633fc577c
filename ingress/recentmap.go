package ingress

import "strings"

// A recentMap maps the last IDs, as many as the limit of put, to values. The zero value is empty.
// The owner's mutex guards a recentMap.
type recentMap[V any] struct {
	values map[string]V
	ids    []string // the keys of values, as a ring; once full, next is the oldest
	next   int
}

// put sets the value of id. With limit other IDs in the map, the oldest one is dropped. The map
// keeps a copy of id, since id may be a part of a request header, which would stay in memory as a
// whole.
func (m *recentMap[V]) put(id string, v V, limit int) {
	id = strings.Clone(id)
	if m.values == nil {
		m.values = make(map[string]V)
	}
	if _, known := m.values[id]; !known {
		if len(m.ids) < limit {
			m.ids = append(m.ids, "")
		}
		delete(m.values, m.ids[m.next])
		m.ids[m.next] = id
		m.next = (m.next + 1) % limit
	}
	m.values[id] = v
}
