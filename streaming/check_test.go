package streaming

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A checkRecorder records what is checked, and whether something was written before.
type checkRecorder struct {
	client *recorder
	calls  []string
	reject error
}

func (c *checkRecorder) Check(body []byte, complete bool) error {
	c.calls = append(c.calls, fmt.Sprintf("%d bytes, complete %t, written %d, status %d", len(body), complete, c.client.writes, c.client.status))
	return c.reject
}

// checked relays resp with a check.
func checked(t *testing.T, resp *http.Response, reject error) (c *checkRecorder, result Result, err error) {
	t.Helper()
	c = &checkRecorder{client: newRecorder(), reject: reject}
	relay := Relay{Check: c}
	result, err = relay.Copy(t.Context(), c.client, resp, new(Tap))
	return c, result, err
}

// jsonResponse returns a JSON response of the pieces, of known length or not.
func jsonResponse(known bool, body *script) *http.Response {
	resp := response("application/json; charset=utf-8", body)
	if known {
		resp.ContentLength = 0
		for _, piece := range body.pieces {
			resp.ContentLength += int64(len(piece))
		}
	}
	return resp
}

func TestRelayChecksAJSONResponseBeforeTheFirstWrite(t *testing.T) {
	for _, known := range []bool{true, false} {
		for _, endsNow := range []bool{true, false} {
			for _, n := range []int{0, 2, smallBuffer, smallBuffer + 1, largeBuffer - 1, largeBuffer, largeBuffer + 1, 3 * largeBuffer} {
				text := strings.Repeat("x", n)
				pieces := []string{text[:n/2], text[n/2:]}
				c, result, err := checked(t, jsonResponse(known, &script{pieces: pieces, endsNow: endsNow}), nil)
				if err != nil || string(c.client.got) != text || !result.Started || result.Bytes != int64(n) {
					t.Fatalf("%d bytes, known %t: relayed %d, %+v, error %v", n, known, len(c.client.got), result, err)
				}
				// A full buffer is checked at once: more may be long in coming.
				whole := n < largeBuffer || n == largeBuffer && (known || endsNow)
				want := fmt.Sprintf("%d bytes, complete %t, written 0, status 0", min(n, largeBuffer), whole)
				if len(c.calls) != 1 || c.calls[0] != want {
					t.Errorf("%d bytes, known %t, the end with the last read %t: checks %q, want %q", n, known, endsNow, c.calls, want)
				}
			}
		}
	}
}

func TestRelayRejectedResponseIsNotStarted(t *testing.T) {
	cause := errors.New("aborted")
	for _, known := range []bool{true, false} {
		for _, n := range []int{10, 2 * largeBuffer} {
			c, result, err := checked(t, jsonResponse(known, &script{pieces: []string{strings.Repeat("x", n)}}), cause)
			if !errors.Is(err, ErrRejected) || !errors.Is(err, cause) || errors.Is(err, ErrUpstreamBroken) {
				t.Errorf("error %v", err)
			}
			if result.Started || result.Bytes > 0 || c.client.writes > 0 || c.client.status > 0 || len(c.client.header) > 0 {
				t.Errorf("%+v; %d writes, status %d, header %v", result, c.client.writes, c.client.status, c.client.header)
			}
		}
	}
}

// A response that breaks before it was checked has not been started; later it has.
func TestRelayCheckedResponseThatBreaks(t *testing.T) {
	for _, known := range []bool{true, false} {
		for n, started := range map[int]bool{10: false, largeBuffer - 1: false, largeBuffer + 1: true} {
			resp := jsonResponse(known, &script{pieces: []string{strings.Repeat("x", n)}, end: errReset})
			if known {
				resp.ContentLength += 10
			}
			c, result, err := checked(t, resp, nil)
			if !errors.Is(err, ErrUpstreamBroken) || !errors.Is(err, errReset) || result.Started != started || (len(c.calls) == 1) != started {
				t.Errorf("after %d bytes: %+v, checks %q, error %v", n, result, c.calls, err)
			}
		}
	}
}

func TestRelayChecksOnlyJSON(t *testing.T) {
	for _, kind := range []string{"text/event-stream", "application/x-ndjson", "application/jsonl", "text/plain", "audio/mpeg", ""} {
		if c, _, err := checked(t, response(kind, &script{pieces: []string{"{}\n\n"}}), errReset); err != nil || len(c.calls) > 0 {
			t.Errorf("%s: checks %q, error %v", kind, c.calls, err)
		}
	}
	resp := response("application/json", &script{pieces: []string{"\x1f\x8b"}})
	resp.Header.Set("Content-Encoding", "gzip")
	if c, _, err := checked(t, resp, errReset); err != nil || len(c.calls) > 0 {
		t.Errorf("compressed: checks %q, error %v", c.calls, err)
	}
}

const abortEvent = `data: {"choices":[{"index":0,"delta":{"content":""},"finish_reason":"abort","stop_reason":null}]}` + "\n\n"

func TestTapSeesAbortedResponses(t *testing.T) {
	const usage = `,"usage":{"prompt_tokens":3,"total_tokens":5,"completion_tokens":2}}`
	long := `{"choices":[{"message":{"content":"` + strings.Repeat("x", 2*largeBuffer) + `"},"finish_reason":"%s"}]` + usage
	done := "data: [DONE]\n\n"
	for name, c := range map[string]struct {
		resp *http.Response
		want bool
	}{
		"stream":                   {events(&script{pieces: []string{chunk, abortEvent, done}}), true},
		"stream in one write":      {events(&script{pieces: []string{chunk + abortEvent + done}}), true},
		"stream that ends well":    {events(&script{pieces: []string{chunk, strings.Replace(abortEvent, "abort", "stop", 1), done}}), false},
		"stream about aborts":      {events(&script{pieces: []string{strings.Replace(chunk, " learning", `abort`, 1), done}}), false},
		"long text":                {jsonResponse(true, &script{pieces: []string{fmt.Sprintf(long, "abort")}}), true},
		"long text in chunks":      {jsonResponse(false, &script{pieces: []string{fmt.Sprintf(long, "abort")}}), true},
		"long text that ends well": {jsonResponse(true, &script{pieces: []string{fmt.Sprintf(long, "length")}}), false},
	} {
		var tap Tap
		if _, err := new(Relay).Copy(t.Context(), newRecorder(), c.resp, &tap); err != nil || tap.Aborted != c.want {
			t.Errorf("%s: aborted %t, error %v", name, tap.Aborted, err)
		}
	}
}

type acceptAll struct{}

func (acceptAll) Check([]byte, bool) error { return nil }

const shortJSON = `{"choices":[{"message":{"content":"some text of usual length"},"finish_reason":"stop"}]}`

func TestRelayCheckAllocatesNothing(t *testing.T) {
	relayed := func(relay *Relay) float64 {
		return testing.AllocsPerRun(100, func() {
			resp := jsonResponse(true, &script{pieces: []string{shortJSON}, endsNow: true})
			if _, err := relay.Copy(t.Context(), discardWriter{http.Header{}}, resp, new(Tap)); err != nil {
				t.Fatal(err)
			}
		})
	}
	if with, without := relayed(&Relay{Check: acceptAll{}}), relayed(&Relay{}); with > without {
		t.Errorf("%v allocations with a check, %v without", with, without)
	}
}

func BenchmarkRelayJSON(b *testing.B) {
	for name, relay := range map[string]*Relay{"without a check": {}, "with a check": {Check: acceptAll{}}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				resp := jsonResponse(true, &script{pieces: []string{shortJSON}, endsNow: true})
				if _, err := relay.Copy(b.Context(), discardWriter{http.Header{}}, resp, new(Tap)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
