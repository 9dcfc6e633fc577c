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

// hasBody tells whether an answer of a status has a body.
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

// appendFields appends the header but for what is decided when it is sent, which goes into f.
func appendHeader(out []byte, h http.Header, status int, f *framingFields) []byte {
	var room [24]string
	names := room[:0]
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
	slices.Sort(names) // for answers that look alike
	for _, name := range names {
		out = appendFieldLines(out, name, h[name])
	}
	return out
}

// announce takes note of which trailers will follow.
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

// oneLine keeps a value from ending its line.
var newlineReplacer = strings.NewReplacer("\n", " ", "\r", " ")

// appendField appends a line for each value, made fit for it; none at all if the name is no name.
func appendFieldLines(out []byte, name string, values []string) []byte {
	if !httpguts.ValidHeaderFieldName(name) {
		return out
	}
	for _, value := range values {
		if strings.ContainsAny(value, crlf) {
			value = newlineReplacer.Replace(value)
		}
		out = append(append(out, name...), ": "...)
		out = append(append(out, textproto.TrimString(value)...), crlf...)
	}
	return out
}

func firstValue(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// A date is the time as heads tell it, written once per second.
type dateCache struct {
	last atomic.Pointer[cachedDate]
}

type cachedDate struct {
	second int64
	text   string
}

func (d *dateCache) now() string {
	now := time.Now()
	last := d.last.Load()
	if second := now.Unix(); last == nil || last.second != second {
		last = &cachedDate{second, now.UTC().Format(http.TimeFormat)}
		d.last.Store(last)
	}
	return last.text
}
