package streaming

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A pacedBody returns each piece after its delay and then end, or io.EOF.
type pacedBody struct {
	pieces []pacedPiece
	end    error
}

type pacedPiece struct {
	after time.Duration
	text  string
}

func (b *pacedBody) Read(p []byte) (int, error) {
	if len(b.pieces) == 0 {
		if b.end != nil {
			return 0, b.end
		}
		return 0, io.EOF
	}
	next := &b.pieces[0]
	time.Sleep(next.after)
	n := copy(p, next.text)
	if next.after, next.text = 0, next.text[n:]; next.text == "" {
		b.pieces = b.pieces[1:]
	}
	return n, nil
}

func (b *pacedBody) Close() error { return nil }

// relayKeepAlive relays a body in virtual time with a comment after every 10 s of silence.
func relayKeepAlive(t *testing.T, contentType string, body *pacedBody) (p *recorder, result Result, err error) {
	synctest.Test(t, func(t *testing.T) {
		p = newRecorder()
		result, err = (&Relay{KeepAlive: 10 * time.Second}).Copy(t.Context(), p, response(contentType, body), nil)
	})
	return p, result, err
}

func TestRelayKeepAliveCommentsOnlyOnEventBoundary(t *testing.T) {
	const s = time.Second
	long := longEvent(largeBuffer)
	for name, test := range map[string]struct {
		pieces []pacedPiece
		end    error
		want   string
	}{
		"never silent":               {[]pacedPiece{{9 * s, "data: 1\n\n"}, {9 * s, "data: 2\n\n"}}, nil, "data: 1\n\ndata: 2\n\n"},
		"before the first event":     {[]pacedPiece{{25 * s, "data: 1\n\n"}}, nil, keepAliveComment + keepAliveComment + "data: 1\n\n"},
		"between events":             {[]pacedPiece{{0, "data: 1\n\n"}, {15 * s, "data: 2\n\n"}}, nil, "data: 1\n\n" + keepAliveComment + "data: 2\n\n"},
		"after a later write":        {[]pacedPiece{{6 * s, "data: 1\n\n"}, {9 * s, "data: 2\n\n"}, {11 * s, "data: 3\n\n"}}, nil, "data: 1\n\ndata: 2\n\n" + keepAliveComment + "data: 3\n\n"},
		"while an event is held":     {[]pacedPiece{{0, "data: 1\n\nda"}, {15 * s, "ta: 2\n\n"}}, nil, "data: 1\n\n" + keepAliveComment + "data: 2\n\n"},
		"never within an event":      {[]pacedPiece{{0, long[:largeBuffer/2]}, {0, long[largeBuffer/2 : largeBuffer]}, {25 * s, long[largeBuffer:]}}, nil, long},
		"before a break":             {[]pacedPiece{{15 * s, "data: 1\n\n"}}, errReset, keepAliveComment + "data: 1\n\n" + brokenEvent},
		"before nothing but a break": {[]pacedPiece{{15 * s, ""}}, errReset, keepAliveComment + brokenEvent},
	} {
		t.Run(name, func(t *testing.T) {
			p, result, err := relayKeepAlive(t, eventStream, &pacedBody{test.pieces, test.end})
			if !errors.Is(err, test.end) || string(p.got) != test.want || p.flushed != len(p.got) || p.status != http.StatusOK {
				t.Errorf("%d, %v: %d of %.80q were flushed; want %.80q", p.status, err, p.flushed, p.got, test.want)
			}
			sent := strings.ReplaceAll(strings.TrimSuffix(test.want, brokenEvent), keepAliveComment, "")
			if !result.Started || result.Bytes != int64(len(sent)) || result.FirstByte.IsZero() != (sent == "") {
				t.Errorf("the result of %.80q is %+v", sent, result)
			}
		})
	}
}

func TestRelayKeepAliveOnlyForEventStreams(t *testing.T) {
	for _, kind := range []string{"application/json", "audio/mpeg", "text/plain"} {
		p, _, err := relayKeepAlive(t, kind, &pacedBody{[]pacedPiece{{25 * time.Second, "{"}, {25 * time.Second, "}"}}, nil})
		if string(p.got) != "{}" || err != nil {
			t.Errorf("%s became %q, %v", kind, p.got, err)
		}
	}
}

func TestRelayKeepAliveOverHTTP1AndH2(t *testing.T) {
	overHTTP1AndH2(t, func(t *testing.T, h2 bool) {
		synctest.Test(t, func(t *testing.T) {
			ended := make(chan error, 1)
			client, _ := serve(t, h2, func(w http.ResponseWriter, r *http.Request) {
				resp := events(&pacedBody{[]pacedPiece{{15 * time.Second, chunk}, {35 * time.Second, chunk}}, nil})
				relay := Relay{KeepAlive: 10 * time.Second, WriteTimeout: time.Second}
				_, err := relay.Copy(r.Context(), w, resp, nil)
				ended <- err
			})
			got, err := io.ReadAll(get(t, client, "GET").Body)
			if err := <-ended; err != nil {
				t.Error(err)
			}
			if want := keepAliveComment + chunk + strings.Repeat(keepAliveComment, 3) + chunk; string(got) != want || err != nil {
				t.Errorf("read %q and %v", got, err)
			}
		})
	})
}

func TestRelayKeepAliveStopsAtFailedWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, disconnect := context.WithCancel(t.Context())
		defer disconnect()
		p := newRecorder()
		p.fail = errReset
		_, err := (&Relay{KeepAlive: time.Second}).Copy(ctx, p, events(&pacedBody{[]pacedPiece{{5 * time.Second, chunk}}, nil}), nil)
		if !errors.Is(err, ErrClientGone) || len(p.got) > 0 {
			t.Errorf("%v; written %q", err, p.got)
		}
	})
}
