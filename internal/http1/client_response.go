package http1

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

var (
	errUpgrade          = errors.New("it changes the protocol unasked")
	errTransferEncoding = errors.New("its transfer coding is not chunked alone")
	errContentLength    = errors.New("its length is contradictory or no number")
)

// readResponse reads the header of the response. Interim responses are skipped, any number of them,
// as long as all headers together fit into maxResponseHeader.
func (rt *roundTrip) readResponse() error {
	limit := maxResponseHeader
	for {
		header, err := rt.readHeader(limit)
		if err != nil {
			return err
		}
		limit -= len(header)
		if err := rt.parseHeader(header); err != nil {
			return err
		}
		if err := rt.setFraming(); err != nil {
			return err
		}
		switch code := rt.response.StatusCode; {
		case code == http.StatusSwitchingProtocols:
			return errUpgrade
		case code >= http.StatusOK:
			return nil
		}
	}
}

// setFraming determines the end of the body and the reuse of the connection, by RFC 9112, section
// 6.3. Ambiguous framing is refused.
func (rt *roundTrip) setFraming() error {
	r := &rt.response
	isChunked, err := takeTransferEncoding(r)
	if err == nil && isChunked {
		err = rt.parseTrailerNames()
	}
	if err != nil {
		return err
	}
	length, err := parseContentLength(r.Header)
	if err != nil {
		return err
	}
	r.Close = willClose(r)
	rt.reusable = rt.reusable && !r.Close && (!isChunked || length < 0)
	switch {
	case r.Request.Method == http.MethodHead:
		r.ContentLength = length
	case r.StatusCode == http.StatusNoContent:
		// With chunked coding or a length, a body may follow, against the rules.
		rt.reusable = rt.reusable && !isChunked && length <= 0
	case r.StatusCode < http.StatusOK || r.StatusCode == http.StatusNotModified:
	case isChunked:
		rt.framing, r.ContentLength = framingChunked, -1
		delete(r.Header, "Content-Length")
	case length > 0:
		rt.framing, rt.remaining, r.ContentLength = framingLength, length, length
	case length < 0:
		rt.framing, r.ContentLength, r.Close, rt.reusable = framingClose, -1, true, false
	}
	return nil
}

// takeTransferEncoding moves the Transfer-Encoding from the header to the field of http.Response,
// and reports whether the body is chunked.
func takeTransferEncoding(r *http.Response) (isChunked bool, err error) {
	codings, ok := r.Header["Transfer-Encoding"]
	if !ok {
		return false, nil
	}
	if r.ProtoMinor == 0 || len(codings) != 1 || !strings.EqualFold(codings[0], "chunked") {
		return false, errTransferEncoding
	}
	delete(r.Header, "Transfer-Encoding")
	r.TransferEncoding = codings
	return true, nil
}

// parseContentLength returns the Content-Length, or -1 without one. Repeated equal fields are
// reduced to one; unequal ones are an error.
func parseContentLength(h http.Header) (int64, error) {
	lengths := h["Content-Length"]
	if len(lengths) == 0 {
		return -1, nil
	}
	for _, other := range lengths[1:] {
		if other != lengths[0] {
			return 0, errContentLength
		}
	}
	h["Content-Length"] = lengths[:1]
	n, err := strconv.ParseUint(lengths[0], 10, 63)
	if err != nil {
		return 0, errContentLength
	}
	return int64(n), nil
}

// willClose reports whether the server closes the connection after the response.
func willClose(r *http.Response) bool {
	connection := r.Header["Connection"]
	return httpguts.HeaderValuesContainsToken(connection, "close") ||
		r.ProtoMinor == 0 && !httpguts.HeaderValuesContainsToken(connection, "keep-alive")
}

// parseTrailerNames moves the names of the announced trailer fields from the header to the
// response's Trailer.
func (rt *roundTrip) parseTrailerNames() error {
	names, ok := rt.response.Header["Trailer"]
	if !ok {
		return nil
	}
	delete(rt.response.Header, "Trailer")
	for _, list := range names {
		for name := range strings.SplitSeq(list, ",") {
			switch name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); name {
			case "":
				continue
			case "Transfer-Encoding", "Trailer", "Content-Length":
				return errMalformedHeader
			}
			if rt.response.Trailer == nil {
				rt.response.Trailer = make(http.Header)
			}
			rt.response.Trailer[name] = nil
		}
	}
	return nil
}

// mergeTrailer adds the fields after the last chunk to the response's Trailer. The error is io.EOF,
// the end of the body, unless the fields are malformed.
func (rt *roundTrip) mergeTrailer() error {
	if rt.chunks.trailer == nil {
		return io.EOF
	}
	fields, err := parseFields(string(rt.chunks.trailer))
	if err != nil {
		return err
	}
	if rt.response.Trailer == nil {
		rt.response.Trailer = fields
	} else {
		maps.Copy(rt.response.Trailer, fields)
	}
	return io.EOF
}
