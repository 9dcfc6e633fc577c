package http1

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// netHTTPResponse returns the response that net/http parses: the first one that is not interim, or
// that has another version.
func netHTTPResponse(method string, response []byte) (*http.Response, error) {
	r := bufio.NewReader(bytes.NewReader(response))
	for {
		resp, err := http.ReadResponse(r, &http.Request{Method: method})
		if err != nil || resp.StatusCode/100 != 1 || resp.StatusCode == http.StatusSwitchingProtocols || resp.ProtoMajor != 1 {
			return resp, err
		}
	}
}

var (
	folded   = regexp.MustCompile(`\n[ \t]`)
	oddSpace = regexp.MustCompile(`\n[^:\n]* [^:\n]*:`)
	oldCoded = regexp.MustCompile(`(?s)HTTP/1\.0 .*\n(?i:transfer-encoding):`)
)

// isDeliberate reports whether err is one of the refusals that doc.go lists, of responses that
// net/http accepts.
func isDeliberate(err error, raw []byte, theirs *http.Response) bool {
	switch {
	case errors.Is(err, errVersion):
		return theirs.ProtoMajor != 1 || !bytes.HasPrefix(raw, []byte("HTTP/1."))
	case errors.Is(err, errStatus):
		return theirs.StatusCode < 100 || bytes.Contains(raw, []byte(" +"))
	case errors.Is(err, errMalformedHeader):
		return folded.Match(raw) || oddSpace.Match(raw)
	case errors.Is(err, errTransferEncoding):
		return oldCoded.Match(raw)
	case errors.Is(err, errUpgrade):
		return theirs.StatusCode == http.StatusSwitchingProtocols
	}
	return false
}

// normalizeHeader removes what net/http adds or removes by itself.
func normalizeHeader(h http.Header) http.Header {
	h = maps.Clone(h)
	delete(h, "Connection")
	if slices.Contains(h["Pragma"], "no-cache") {
		delete(h, "Cache-Control")
	}
	return h
}

func sameHeader(a, b http.Header) bool {
	return maps.EqualFunc(normalizeHeader(a), normalizeHeader(b), func(a, b []string) bool { return slices.Equal(a, b) })
}

func FuzzClientResponseMatchesNetHTTP(f *testing.F) {
	for _, c := range wellFormedResponses {
		f.Add([]byte(c.response), c.method == "HEAD", uint8(3), uint8(5))
	}
	f.Add([]byte("HTTP/1.0 200 OK\r\nPragma: no-cache\r\nConnection: keep-alive, close\r\n\r\nx"), false, uint8(0), uint8(0))
	f.Add([]byte("HTTP/1.1 101 X\r\nA : b\r\n c\r\n\r\n"), false, uint8(0), uint8(0))
	f.Add([]byte("HTTP/1.1 200 OK\r\ntransfer-encoding:chunked\r\ntrailer:x\r\n\r\n1 \r\nx\r\n2;\r\nab\r\n0\r\nx:y\r\n\r\n"), false, uint8(1), uint8(1))
	f.Fuzz(func(t *testing.T, response []byte, isHEAD bool, piece, size uint8) {
		method := "POST"
		if isHEAD {
			method = "HEAD"
		}
		theirs, theirErr := netHTTPResponse(method, response)
		rt := newScriptedRoundTrip(method, &scriptConn{data: response, maxRead: int(piece)})
		err := rt.readResponse()
		switch {
		case err != nil && theirErr == nil && !isDeliberate(err, response, theirs):
			t.Fatalf("it was refused (%v); net/http accepts it: %+v", err, theirs)
		case err == nil && theirErr != nil:
			t.Fatalf("it was accepted: %+v; net/http refuses it (%v)", rt.response, theirErr)
		case err != nil:
			return
		}
		ours := &rt.response
		if ours.StatusCode != theirs.StatusCode || ours.Status != theirs.Status || ours.Proto != theirs.Proto ||
			ours.ContentLength != theirs.ContentLength || ours.Close != theirs.Close || len(ours.TransferEncoding) != len(theirs.TransferEncoding) {
			t.Fatalf("it is %+v; net/http has %+v", ours, theirs)
		}
		if !sameHeader(ours.Header, theirs.Header) || !sameHeader(ours.Trailer, theirs.Trailer) {
			t.Fatalf("the header is %v, %v; net/http has %v, %v", ours.Header, ours.Trailer, theirs.Header, theirs.Trailer)
		}
		var body io.Reader = rt
		if rt.framing == framingNone {
			body = http.NoBody
		}
		compareBodies(t, limitedReader{body, max(1, int(size))}, ours, theirs)
	})
}

func compareBodies(t *testing.T, r io.Reader, ours, theirs *http.Response) {
	got, err := io.ReadAll(r)
	want, theirErr := io.ReadAll(theirs.Body)
	switch {
	case err == nil && theirErr != nil:
		t.Fatalf("the body is %q; net/http refuses it: %v", got, theirErr)
	case err != nil && theirErr == nil && !isStrictBodyError(err):
		t.Fatalf("the body is truncated (%v); net/http reads %q", err, want)
	case err == nil && !bytes.Equal(got, want), !bytes.HasPrefix(want, got) && !bytes.HasPrefix(got, want):
		t.Fatalf("the body is %q; net/http reads %q", got, want)
	case err == nil && !sameHeader(ours.Trailer, theirs.Trailer):
		t.Fatalf("the trailer is %v; net/http has %v", ours.Trailer, theirs.Trailer)
	}
}

// isStrictBodyError reports whether an error of a body is one of the refusals that doc.go lists.
// Trailer fields are parsed as those of the header are.
func isStrictBodyError(err error) bool {
	return errors.Is(err, errChunkOverhead) || errors.Is(err, errMalformedHeader) || errors.Is(err, errTrailerTooLong)
}

// Reads may split chunked coding anywhere, and the result must not depend on where.
func FuzzChunkDecoderAtEverySplit(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\n\r\n"), uint8(1))
	f.Add([]byte("5;a=b\r\nhello\r\n1 \r\nx\r\n0\r\nA: b\r\n\r\nrest"), uint8(2))
	f.Fuzz(func(t *testing.T, raw []byte, piece uint8) {
		whole := slices.Clone(raw)
		var d chunkDecoder
		n, used, err := d.decodeChunks(whole)
		var got strings.Builder
		var cut chunkDecoder
		var at, usedCut int
		var cutErr error
		for at < len(raw) && cutErr == nil {
			p := slices.Clone(raw[at:min(len(raw), at+max(1, int(piece)))])
			var k, u int
			k, u, cutErr = cut.decodeChunks(p)
			got.Write(p[:k])
			usedCut, at = usedCut+u, at+len(p)
		}
		if got.String() != string(whole[:n]) || usedCut != used || cutErr != err || string(cut.trailer) != string(d.trailer) {
			t.Fatalf("cut: %q, %d, %v; whole: %q, %d, %v", got.String(), usedCut, cutErr, whole[:n], used, err)
		}
	})
}
