package http1

import (
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/http/httpguts"
)

// bodyAllowed reports whether a response of the given status may have a body.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func appendStatusLine(out []byte, status int) []byte {
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(status), 10)
	text := http.StatusText(status)
	if text == "" {
		text = "status code " + strconv.Itoa(status)
	}
	out = append(append(out, ' '), text...)
	return append(out, crlf...)
}

// appendHeader appends the fields of h, sorted by name. The fields decided at the sending of the
// header are stored in f instead.
func appendHeader(out []byte, h http.Header, status int, f *framingFields) []byte {
	var buf [24]string // on the stack, as most headers are smaller
	names := buf[:0]
	for name, values := range h {
		switch name {
		case "Content-Length":
			f.contentLength, f.hasContentLength = values, true
			continue
		case "Transfer-Encoding":
			f.transferEncoding = values
			continue
		case "Connection":
			f.connection = values
			continue
		case "Content-Type":
			f.hasContentType = true
			if status == http.StatusNotModified {
				continue
			}
		case "Content-Encoding":
			f.hasContentEncoding = firstValue(values) != ""
		case "Date":
			f.hasDate = true
		case "Trailer":
			f.addTrailers(values)
		default:
			if strings.HasPrefix(name, http.TrailerPrefix) {
				f.hasTrailers = true
				continue
			}
		}
		names = append(names, name)
	}
	slices.Sort(names) // equal headers are equal bytes
	for _, name := range names {
		out = appendFieldLines(out, name, h[name])
	}
	return out
}

// addTrailers adds the names in the values of a Trailer field.
func (f *framingFields) addTrailers(lists []string) {
	f.hasTrailers = f.hasTrailers || len(lists) > 0
	for _, list := range lists {
		for name := range strings.SplitSeq(list, ",") {
			name = textproto.CanonicalMIMEHeaderKey(textproto.TrimString(name))
			if name != "" && httpguts.ValidTrailerHeader(name) {
				f.trailers = append(f.trailers, name)
			}
		}
	}
}

// newlineReplacer removes the line breaks of a value, which could begin a line.
var newlineReplacer = strings.NewReplacer("\n", " ", "\r", " ")

// appendFieldLines appends one line per value, with line breaks removed from the value, or nothing
// if the name is invalid.
func appendFieldLines(out []byte, name string, values []string) []byte {
	if !httpguts.ValidHeaderFieldName(name) {
		return out
	}
	for _, value := range values {
		if strings.ContainsAny(value, crlf) {
			value = newlineReplacer.Replace(value)
		}
		out = appendFieldLine(out, name, textproto.TrimString(value))
	}
	return out
}

// A dateCache formats the current time once per second. Any goroutine may use a dateCache; two may
// format the same second.
type dateCache struct {
	last atomic.Pointer[cachedDate]
}

type cachedDate struct {
	second int64
	text   string
}

// currentDate returns the current time as the value of a Date field.
func (d *dateCache) currentDate() string {
	now := time.Now()
	last := d.last.Load()
	if second := now.Unix(); last == nil || last.second != second {
		last = &cachedDate{second, now.UTC().Format(http.TimeFormat)}
		d.last.Store(last)
	}
	return last.text
}
