package streaming

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
)

func TestRelayRejectsInformationalStatus(t *testing.T) {
	for _, status := range []int{0, 99, http.StatusSwitchingProtocols} {
		resp := events(&script{})
		resp.StatusCode = status
		res, err := relay(t, newRecorder(), resp)
		if !errors.Is(err, ErrUpstreamBroken) || res.Started {
			t.Errorf("status %d: %+v, %v", status, res, err)
		}
	}
}

func TestRelayErrorEventOnlyOnEventBoundary(t *testing.T) {
	long := longEvent(largeBuffer)
	for name, test := range map[string]struct{ sent, want string }{
		"before anything":         {"", ""},
		"within the first event":  {chunk[:20], ""},
		"between events":          {chunk, chunk + brokenEvent},
		"within a later event":    {chunk + chunk[:20], chunk + brokenEvent},
		"within a split event":    {chunk + long[:len(long)-2], chunk + long[:len(long)-2]},
		"behind a split event":    {long, long + brokenEvent},
		"after a CR, before a LF": {"data: a\r\n\r", "data: a\r\n\r" + brokenEvent},
	} {
		for _, together := range []bool{false, true} {
			p := newRecorder()
			res, err := relay(t, p, events(&script{pieces: []string{test.sent}, end: errReset, endsNow: together}))
			if !errors.Is(err, ErrUpstreamBroken) || !errors.Is(err, errReset) {
				t.Errorf("%s: error %v", name, err)
			}
			if string(p.got) != test.want || p.flushed != len(test.want) {
				t.Errorf("%s: written %.300q, %d flushed, want %.300q", name, p.got, p.flushed, test.want)
			}
			if res.Started != (test.want != "") || res.Started != (p.status != 0) {
				t.Errorf("%s: %+v, status %d", name, res, p.status)
			}
			if want := len(strings.TrimSuffix(test.want, brokenEvent)); res.Bytes != int64(want) {
				t.Errorf("%s: %d bytes counted, want %d", name, res.Bytes, want)
			}
		}
	}
}

func TestRelayKnownLengthBrokenIsNotStartedUnlessLong(t *testing.T) {
	for size, started := range map[int]bool{10: false, smallBuffer: false, largeBuffer - 1: false, largeBuffer + 10: true} {
		p := newRecorder()
		resp := response("application/json", &script{pieces: []string{strings.Repeat("x", size)}, end: io.ErrUnexpectedEOF})
		resp.ContentLength = int64(size) + 1
		res, err := relay(t, p, resp)
		if !errors.Is(err, ErrUpstreamBroken) || res.Started != started || (p.status != 0) != started {
			t.Errorf("%d bytes, then broken: %+v, %v", size, res, err)
		}
		if strings.Contains(string(p.got), "error") {
			t.Errorf("an error event in a body other than an event stream: %q", p.got)
		}
	}
}

func TestRelayStopsAtFirstFailedWrite(t *testing.T) {
	for name, resp := range map[string]*http.Response{"events": events(nil), "others": response("text/plain", nil)} {
		p := newRecorder()
		body := &script{pieces: []string{chunk, chunk, chunk}}
		body.before = func() {
			if p.fail != nil {
				t.Errorf("%s: the upstream was read after a failed write", name)
			}
			if len(p.got) > 0 {
				p.fail = errReset
			}
		}
		resp.Body = body
		res, err := relay(t, p, resp)
		if !errors.Is(err, ErrClientGone) || errors.Is(err, ErrUpstreamBroken) || !errors.Is(err, errReset) {
			t.Errorf("%s: error %v", name, err)
		}
		if string(p.got) != chunk || !res.Started || res.Bytes != int64(len(chunk)) {
			t.Errorf("%s: written %q, %+v", name, p.got, res)
		}
	}
}

func TestRelayBlamesClientOnceItsContextEnded(t *testing.T) {
	ctx, disconnect := context.WithCancel(t.Context())
	p := newRecorder()
	body := &script{pieces: []string{chunk}, end: context.Canceled}
	body.before = func() {
		if len(body.pieces) == 0 {
			disconnect()
		}
	}
	_, err := new(Relay).Copy(ctx, p, events(body), nil)
	if !errors.Is(err, ErrClientGone) || errors.Is(err, ErrUpstreamBroken) || string(p.got) != chunk {
		t.Errorf("%v; written %q", err, p.got)
	}
}

// A retainingWriter fails every write and retains its bytes, as the frame writer of an HTTP/2
// connection may.
type retainingWriter struct {
	*recorder
	kept []byte
}

func (k *retainingWriter) Write(p []byte) (int, error) {
	k.kept = p
	return 0, errReset
}

func TestRelayBufferOfFailedWriteIsNotReused(t *testing.T) {
	for range 20 {
		for _, resp := range []*http.Response{events(nil), response("audio/mpeg", nil)} {
			k := &retainingWriter{recorder: newRecorder()}
			resp.Body = &script{pieces: []string{chunk}}
			if _, err := relay(t, k, resp); !errors.Is(err, ErrClientGone) {
				t.Fatal(err)
			}
			resp.Body = &script{pieces: []string{longEvent(len(chunk))}}
			if _, err := relay(t, newRecorder(), resp); err != nil {
				t.Fatal(err)
			}
			if string(k.kept) != chunk {
				t.Fatalf("the retained bytes became %q", k.kept)
			}
		}
	}
}
