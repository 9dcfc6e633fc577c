package http1

import (
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// What a byte may be part of.
const (
	classToken  = 1 << iota // of a field's name
	classValue              // of a field's value: visible ASCII, space and tab
	classTarget             // of a request's target: visible ASCII
	classPath               // of a path that is what it looks like, escaped or not
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

// all tells whether every byte of s is of a class.
func allOf(s string, of uint8) bool {
	for i := range len(s) {
		if byteClasses[s[i]]&of == 0 {
			return false
		}
	}
	return true
}

// methods are those that a plain request may have.
var simpleMethods = [...]string{http.MethodPost, http.MethodGet, http.MethodDelete, http.MethodPut, http.MethodPatch, http.MethodOptions}

// parse fills in r from the lines of a head: the request line and fields, each with its CRLF, without the empty line. It
// reports whether they are plain: nothing in them that anyone could understand otherwise. What it leaves out is for
// net/http to judge, so it may be as strict as it likes. Whether there is a Host, which there must be, is left to the caller.
func parseSimple(lines string, r *http.Request) (plain bool) {
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

// parseFields parses the fields, whose values share one slice of memory.
func parseSimpleFields(s string, r *http.Request) bool {
	lines := strings.Count(s, "\n")
	r.Header = make(http.Header, lines)
	values := make([]string, 0, lines)
	for s != "" {
		line, rest, found := strings.Cut(s, "\r\n")
		name, value, colon := strings.Cut(line, ":")
		if !found || !colon || name == "" || !allOf(name, classToken) || !allOf(value, classValue) {
			return false
		}
		s = rest
		name, value = textproto.CanonicalMIMEHeaderKey(name), strings.Trim(value, " \t")
		have := r.Header[name]
		if !acceptField(name, value, have != nil, r) {
			return false
		}
		if have != nil {
			r.Header[name] = append(have, value)
			continue
		}
		values = append(values, value)
		r.Header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	delete(r.Header, "Host")
	if pragma := r.Header["Pragma"]; len(pragma) > 0 && pragma[0] == "no-cache" && r.Header["Cache-Control"] == nil {
		r.Header["Cache-Control"] = []string{"no-cache"} // as net/http does
	}
	return true
}

// admit takes note of the fields by which requests are told apart, and of the connection's. again: there has been one.
func acceptField(name, value string, again bool, r *http.Request) bool {
	switch name {
	case "Host":
		r.Host = value
		return !again && value != "" && httpguts.ValidHostHeader(value)
	case "Content-Length":
		n, err := strconv.ParseUint(value, 10, 62)
		r.ContentLength = int64(n)
		return !again && err == nil
	case "Connection":
		r.Close = strings.EqualFold(value, "close")
		return !again && (r.Close || strings.EqualFold(value, "keep-alive"))
	case "Transfer-Encoding", "Trailer", "Expect", "Upgrade", "Http2-Settings":
		return false
	default:
		return true
	}
}
