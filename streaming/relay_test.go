package streaming

import (
	"errors"
	"iter"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// relay copies resp to w with a Relay without options.
func relay(t testing.TB, w http.ResponseWriter, resp *http.Response) (Result, error) {
	t.Helper()
	return new(Relay).Copy(t.Context(), w, resp, nil)
}

// checkWholeEvents relays a stream in the given pieces. Before each read, everything up to the last
// whole event must have been written and flushed, and nothing beyond it.
func checkWholeEvents(t *testing.T, pieces []string) {
	t.Helper()
	p := newRecorder()
	body := &script{pieces: slices.Clone(pieces)}
	stream := strings.Join(pieces, "")
	given, sent := 0, 0
	body.before = func() {
		given = len(stream) - len(strings.Join(body.pieces, ""))
		sent = max(sent, naiveLast(stream[:given], sent))
		if string(p.got) != stream[:sent] || p.flushed != sent {
			t.Fatalf("of %q, %q is written and %d bytes flushed, want %d bytes", stream[:given], p.got, p.flushed, sent)
		}
	}
	res, err := relay(t, p, events(body))
	if err != nil || string(p.got) != stream || res.Bytes != int64(len(stream)) {
		t.Fatalf("got %q, %+v, %v, want %q", p.got, res, err, stream)
	}
}

func TestRelayPassesBytesUnchangedAtEverySplitPoint(t *testing.T) {
	for name, stream := range streams(t) {
		t.Run(name, func(t *testing.T) {
			head := stream[:min(len(stream), 700)]
			checkWholeEvents(t, strings.Split(head, ""))
			for window := range windows(stream) {
				for i := range len(window) {
					checkWholeEvents(t, []string{window[:i], window[i:]})
				}
			}

			p := newRecorder()
			if _, err := relay(t, p, events(&script{pieces: strings.Split(stream, "")})); err != nil || string(p.got) != stream {
				t.Fatalf("byte by byte, %d bytes arrived of %d, %v", len(p.got), len(stream), err)
			}
		})
	}
}

// freeText matches the text in which events of the same form differ.
var freeText = regexp.MustCompile(`[\pL\pN ]+`)

// windows yields every pair of consecutive events. No state outlasts an event, so splitting all
// pairs everywhere covers the stream. Of pairs of the same form, only the first is yielded.
func windows(stream string) iter.Seq[string] {
	return func(yield func(string) bool) {
		ends := append([]int{0}, naiveEnds(stream)...)
		ends = append(ends, len(stream))
		seen := map[string]bool{}
		for i, start := range ends {
			window := stream[start:ends[min(i+2, len(ends)-1)]]
			alike := freeText.ReplaceAllString(window, "x")
			if seen[alike] {
				continue
			}
			seen[alike] = true
			if !yield(window) {
				return
			}
		}
	}
}

func FuzzRelayWritesEventsAtTheirEnd(f *testing.F) {
	f.Add(chunk+chunk+"data: [DONE]\n\n", uint8(100))
	f.Add("data: a\r\n\r\ndata: b\r\r: c\n\r\n", uint8(1))
	f.Fuzz(func(t *testing.T, stream string, size uint8) {
		var pieces []string
		for piece := range slices.Chunk([]byte(stream), int(size)+1) {
			pieces = append(pieces, string(piece))
		}
		checkWholeEvents(t, pieces)
	})
}

func TestRelayOneWriteAndFlushPerRead(t *testing.T) {
	p := newRecorder()
	half := len(chunk) / 2
	pieces := []string{chunk, chunk + chunk + chunk[:half], chunk[half:] + chunk}
	res, err := relay(t, p, events(&script{pieces: pieces}))
	if err != nil || p.writes != 3 || p.flushes != 3 {
		t.Errorf("%d writes and %d flushes for 3 reads, %+v, %v", p.writes, p.flushes, res, err)
	}
}

func TestRelayHoldsUnfinishedEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newRecorder()
		body := &script{pieces: []string{chunk + "data: {", `"a"`, ":1}\n", "\n"}}
		began := time.Now()
		body.before = func() {
			if len(body.pieces) > 0 && len(body.pieces) < 4 && string(p.got) != chunk {
				t.Errorf("%q is written after %v", p.got, time.Since(began))
			}
			time.Sleep(time.Hour)
		}
		r := Relay{WriteTimeout: time.Second}
		res, err := r.Copy(t.Context(), p, events(body), nil)
		if err != nil || string(p.got) != chunk+"data: {\"a\":1}\n\n" {
			t.Errorf("written %q, %v", p.got, err)
		}
		if ttfb := res.FirstByte.Sub(began); ttfb != time.Hour {
			t.Errorf("first byte after %v, want 1h", ttfb)
		}
	})
}

func TestRelaySplitsOnlyEventsBeyondTheBuffer(t *testing.T) {
	long := longEvent(3 * largeBuffer)
	stream := chunk + long + chunk + long[:100]
	var pieces []string
	for piece := range slices.Chunk([]byte(stream), 1000) {
		pieces = append(pieces, string(piece))
	}
	p := newRecorder()
	body := &script{pieces: pieces}
	body.before = func() {
		given := len(stream) - 1000*len(body.pieces)
		if held := given - len(p.got); held >= largeBuffer {
			t.Fatalf("%d bytes are held", held)
		}
	}
	res, err := relay(t, p, events(body))
	if err != nil || string(p.got) != stream || res.Bytes != int64(len(stream)) {
		t.Errorf("%d bytes of %d arrived, %v", len(p.got), len(stream), err)
	}
}

func TestRelayNeverSplitsEventsThatFitTheBuffer(t *testing.T) {
	for size, widest := range map[int]int{100: smallBuffer, smallBuffer - 20: smallBuffer, smallBuffer: largeBuffer, largeBuffer - 20: largeBuffer} {
		event := longEvent(size)
		body := &script{pieces: []string{chunk + event[:size/2], event[size/2:]}}
		p := newRecorder()
		body.before = func() {
			if n := len(p.got); n > len(chunk) && n < len(chunk)+len(event) {
				t.Errorf("an event of %d bytes was split behind %d", len(event), n-len(chunk))
			}
		}
		if _, err := relay(t, p, events(body)); err != nil || string(p.got) != chunk+event {
			t.Errorf("%d bytes arrived, %v", len(p.got), err)
		}
		if body.widest > widest {
			t.Errorf("a buffer of %d bytes for an event of %d", body.widest, len(event))
		}
	}
}

func TestRelayWritesHeaderWithFirstBytes(t *testing.T) {
	p := newRecorder()
	body := &script{pieces: []string{"data: ", "a\n\n"}}
	body.before = func() {
		if len(p.got) == 0 && p.status != 0 {
			t.Error("the status was written before the first event")
		}
	}
	resp := events(body)
	resp.StatusCode = http.StatusAccepted
	if res, err := relay(t, p, resp); err != nil || p.status != http.StatusAccepted || !res.Started {
		t.Errorf("status %d, %+v, %v", p.status, res, err)
	}
}

func TestRelayEmptyResponse(t *testing.T) {
	p := newRecorder()
	res, err := relay(t, p, events(&script{}))
	if err != nil || !res.Started || p.status != http.StatusOK || p.writes != 0 || !res.FirstByte.IsZero() {
		t.Errorf("status %d, %d writes, %+v, %v", p.status, p.writes, res, err)
	}
}

func TestRelayKnownLengthIsNotFlushedAndStartsComplete(t *testing.T) {
	for _, size := range []int{1, 1000, smallBuffer, smallBuffer + 1, largeBuffer} {
		text := strings.Repeat("x", size)
		p := newRecorder()
		body := &script{pieces: []string{text[:size/2], text[size/2:]}}
		body.before = func() {
			if p.status != 0 && len(p.got) < size {
				t.Errorf("%d bytes: started with %d", size, len(p.got))
			}
		}
		resp := response("application/json", body)
		resp.ContentLength = int64(size)
		if _, err := relay(t, p, resp); err != nil || string(p.got) != text || p.flushes != 0 || p.writes != 1 {
			t.Errorf("%d bytes: %d arrived, %d writes, %d flushes, %v", size, len(p.got), p.writes, p.flushes, err)
		}
	}
}

func TestRelayFlushesOtherBodiesOfUnknownLength(t *testing.T) {
	gzipped := events(nil)
	gzipped.Header.Set("Content-Encoding", "gzip")
	for name, resp := range map[string]*http.Response{
		"lines of JSON": response("application/x-ndjson", nil), "audio": response("audio/mpeg", nil), "compressed events": gzipped,
	} {
		pieces := []string{"abc", "d\n\ne", "f"}
		p := newRecorder()
		body := &script{pieces: slices.Clone(pieces), end: errReset}
		body.before = func() {
			if given := strings.Join(pieces[:3-len(body.pieces)], ""); string(p.got) != given || p.flushed != len(given) {
				t.Errorf("%s: of %q, %q is written, %d flushed", name, given, p.got, p.flushed)
			}
		}
		resp.Body = body
		if res, err := relay(t, p, resp); !errors.Is(err, ErrUpstreamBroken) || string(p.got) != "abcd\n\nef" || !res.Started {
			t.Errorf("%s: %q, %+v, %v", name, p.got, res, err)
		}
	}
}
