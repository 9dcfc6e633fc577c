package http1

import "net/http"

const crlf = "\r\n"

// A headerBuilder builds an http.Header with one slice shared by all values, instead of one slice
// per field.
type headerBuilder struct {
	header http.Header
	values []string
}

// newHeaderBuilder returns a builder with room for the given number of fields; more are allowed.
func newHeaderBuilder(fields int) headerBuilder {
	return headerBuilder{make(http.Header, fields), make([]string, 0, fields)}
}

// addField adds a field. name is in canonical form. The result reports whether the name occurred
// before.
func (b *headerBuilder) addField(name, value string) (repeated bool) {
	if have := b.header[name]; have != nil {
		b.header[name] = append(have, value)
		return true
	}
	b.values = append(b.values, value)
	b.header[name] = b.values[len(b.values)-1 : len(b.values) : len(b.values)]
	return false
}

// appendFieldLine appends one header field to b. The caller has checked name and value: neither may
// contain a line break.
func appendFieldLine(b []byte, name, value string) []byte {
	b = append(b, name...)
	b = append(b, ": "...)
	b = append(b, value...)
	return append(b, crlf...)
}

// firstValue returns the first of values, or "" if there is none.
func firstValue(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}
