package http1

import (
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// The classes of a byte: the allowed places.
const (
	classToken  = 1 << iota // in a field's name
	classValue              // in a field's value: visible ASCII, space and tab
	classTarget             // in a request's target: visible ASCII
	classPath               // in a path whose escaped and unescaped forms are equal
)

var byteClasses = newByteClasses()

func newByteClasses() (table [256]uint8) {
	for b := range len(table) {
		if b > ' ' && b < 0x7f {
			table[b] = classValue | classTarget
		}
		alphanumeric := '0' <= b && b <= '9' || 'a' <= b|0x20 && b|0x20 <= 'z'
		if alphanumeric || b < 0x80 && strings.IndexByte("!#$%&'*+-.^_`|~", byte(b)) >= 0 {
			table[b] |= classToken
		}
		if alphanumeric || b < 0x80 && strings.IndexByte("/-._~", byte(b)) >= 0 {
			table[b] |= classPath
		}
	}
	table[' '], table['\t'] = classValue, classValue
	return table
}

// allOf reports whether every byte of s is of a class.
func allOf(s string, class uint8) bool {
	for i := range len(s) {
		if byteClasses[s[i]]&class == 0 {
			return false
		}
	}
	return true
}

// simpleMethods are the methods of simple requests.
var simpleMethods = [...]string{http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut, http.MethodPatch, http.MethodOptions}

// parseSimple sets r from the lines of a header: request line and fields, each with a CRLF, without
// the empty line. The result reports whether all lines are simple, without a second possible
// meaning. parseSimple may be as strict as needed, since all other requests are for net/http. The
// caller checks for the required Host, because the lines may be the beginning of a header.
func parseSimple(lines string, r *http.Request) (simple bool) {
	line, fields, found := strings.Cut(lines, "\r\n")
	return found && parseRequestLine(line, r) && parseSimpleFields(fields, r)
}

func parseRequestLine(line string, r *http.Request) bool {
	for _, method := range simpleMethods {
		target, ok := strings.CutPrefix(line, method)
		if !ok {
			continue
		}
		target, ok = strings.CutSuffix(target, " HTTP/1.1")
		if !ok || len(target) < 2 || target[0] != ' ' {
			return false
		}
		r.Method, r.RequestURI = method, target[1:]
		r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
		return parseTarget(r)
	}
	return false
}

func parseTarget(r *http.Request) bool {
	target := r.RequestURI
	switch {
	case target[0] != '/':
		return false
	case allOf(target, classPath):
		r.URL = &url.URL{Path: target}
		return true
	case !allOf(target, classTarget):
		return false
	}
	var err error
	r.URL, err = url.ParseRequestURI(target)
	return err == nil
}

func parseSimpleFields(s string, r *http.Request) bool {
	b := newHeaderBuilder(strings.Count(s, "\n"))
	for s != "" {
		line, rest, found := strings.Cut(s, "\r\n")
		name, value, colon := strings.Cut(line, ":")
		if !found || !colon || name == "" || !allOf(name, classToken) || !allOf(value, classValue) {
			return false
		}
		s = rest
		name, value = textproto.CanonicalMIMEHeaderKey(name), strings.Trim(value, " \t")
		if repeated := b.addField(name, value); !acceptField(name, value, repeated, r) {
			return false
		}
	}
	r.Header = b.header
	delete(r.Header, "Host")
	if pragma := r.Header["Pragma"]; len(pragma) > 0 && pragma[0] == "no-cache" && r.Header["Cache-Control"] == nil {
		r.Header["Cache-Control"] = []string{"no-cache"} // as net/http does
	}
	return true
}

// acceptField sets the fields of r derived from a header field in net/http. The result reports
// whether the field may occur in a simple request. repeated is true for a field with the name of an
// earlier one.
func acceptField(name, value string, repeated bool, r *http.Request) bool {
	switch name {
	case "Host":
		r.Host = value
		return !repeated && value != "" && httpguts.ValidHostHeader(value)
	case "Content-Length":
		n, err := strconv.ParseUint(value, 10, 62)
		r.ContentLength = int64(n)
		return !repeated && err == nil
	case "Connection":
		r.Close = strings.EqualFold(value, "close")
		return !repeated && (r.Close || strings.EqualFold(value, "keep-alive"))
	case "Transfer-Encoding", "Trailer", "Expect", "Upgrade", "Http2-Settings":
		return false
	default:
		return true
	}
}
