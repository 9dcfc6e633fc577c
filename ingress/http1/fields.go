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
func hasBody(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

func appendStatus(out []byte, status int) []byte {
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
func appendFields(out []byte, h http.Header, status int, f *framing) []byte {
	var room [24]string
	names := room[:0]
	for name, values := range h {
		switch name {
		case "Content-Length":
			f.length, f.lengthSet = values, true
			continue
		case "Transfer-Encoding":
			f.coding = values
			continue
		case "Connection":
			f.connection = values
			continue
		case "Content-Type":
			f.typeSet = true
			if status == http.StatusNotModified {
				continue
			}
		case "Content-Encoding":
			f.encoded = first(values) != ""
		case "Date":
			f.dateSet = true
		case "Trailer":
			f.announce(values)
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
		out = appendField(out, name, h[name])
	}
	return out
}

// announce takes note of which trailers will follow.
func (f *framing) announce(lists []string) {
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
var oneLine = strings.NewReplacer("\n", " ", "\r", " ")

// appendField appends a line for each value, made fit for it; none at all if the name is no name.
func appendField(out []byte, name string, values []string) []byte {
	if !httpguts.ValidHeaderFieldName(name) {
		return out
	}
	for _, value := range values {
		if strings.ContainsAny(value, crlf) {
			value = oneLine.Replace(value)
		}
		out = append(append(out, name...), ": "...)
		out = append(append(out, textproto.TrimString(value)...), crlf...)
	}
	return out
}

func first(values []string) string {
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

// A date is the time as heads tell it, written once per second.
type date struct {
	last atomic.Pointer[dateText]
}

type dateText struct {
	second int64
	text   string
}

func (d *date) now() string {
	now := time.Now()
	last := d.last.Load()
	if second := now.Unix(); last == nil || last.second != second {
		last = &dateText{second, now.UTC().Format(http.TimeFormat)}
		d.last.Store(last)
	}
	return last.text
}
