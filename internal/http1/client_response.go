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

// readResponse reads the header of the response, past interim ones: any number of them, as long as all
// together fit into maxHead.
func (x *roundTrip) readResponse() error {
	room := maxResponseHeader
	for {
		head, err := x.readHeader(room)
		if err != nil {
			return err
		}
		room -= len(head)
		if err := x.parseHeader(head); err != nil {
			return err
		}
		if err := x.setFraming(); err != nil {
			return err
		}
		switch code := x.response.StatusCode; {
		case code == http.StatusSwitchingProtocols:
			return errUpgrade
		case code >= http.StatusOK:
			return nil
		}
	}
}

// frame finds out how the body ends and whether the connection lives on, by
// RFC 9112, section 6.3. What could be understood in two ways is refused.
func (x *roundTrip) setFraming() error {
	r := &x.response
	coded, err := takeTransferEncoding(r)
	if err == nil && coded {
		err = x.parseTrailerNames()
	}
	if err != nil {
		return err
	}
	length, err := parseContentLength(r.Header)
	if err != nil {
		return err
	}
	r.Close = willClose(r)
	x.reusable = x.reusable && !r.Close && (!coded || length < 0)
	switch {
	case r.Request.Method == http.MethodHead:
		r.ContentLength = length
	case r.StatusCode == http.StatusNoContent:
		x.reusable = x.reusable && !coded && length <= 0 // else a body may follow, against the rules
	case r.StatusCode < http.StatusOK || r.StatusCode == http.StatusNotModified:
	case coded:
		x.framing, r.ContentLength = framingChunked, -1
		delete(r.Header, "Content-Length")
	case length > 0:
		x.framing, x.remaining, r.ContentLength = framingLength, length, length
	case length < 0:
		x.framing, r.ContentLength, r.Close, x.reusable = framingClose, -1, true, false
	}
	return nil
}

// isChunked takes the Transfer-Encoding out of the header.
func takeTransferEncoding(r *http.Response) (bool, error) {
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

// contentLength is -1 if there is none. One told repeatedly is reduced to one.
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

// closes tells whether the replica will close the connection after the answer.
func willClose(r *http.Response) bool {
	connection := r.Header["Connection"]
	return httpguts.HeaderValuesContainsToken(connection, "close") ||
		r.ProtoMinor == 0 && !httpguts.HeaderValuesContainsToken(connection, "keep-alive")
}

// announceTrailer moves the names of the trailer fields to come from the header to where readers look for them.
func (x *roundTrip) parseTrailerNames() error {
	names, ok := x.response.Header["Trailer"]
	if !ok {
		return nil
	}
	delete(x.response.Header, "Trailer")
	for _, list := range names {
		for name := range strings.SplitSeq(list, ",") {
			switch name = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(name)); name {
			case "":
				continue
			case "Transfer-Encoding", "Trailer", "Content-Length":
				return errMalformedHeader
			}
			if x.response.Trailer == nil {
				x.response.Trailer = make(http.Header)
			}
			x.response.Trailer[name] = nil
		}
	}
	return nil
}

// mergeTrailer takes over the fields that came behind the last chunk. It returns io.EOF, the end of the body.
func (x *roundTrip) mergeTrailer() error {
	if x.chunks.trailer == nil {
		return io.EOF
	}
	fields, err := parseFields(string(x.chunks.trailer))
	if err != nil {
		return err
	}
	if x.response.Trailer == nil {
		x.response.Trailer = fields
	} else {
		maps.Copy(x.response.Trailer, fields)
	}
	return io.EOF
}
