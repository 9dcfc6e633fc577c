package streaming

import (
	"maps"
	"net/http"
	"slices"
	"testing"
)

func TestHeaderCopyLeavesOutHopByHopFields(t *testing.T) {
	src := http.Header{
		"Connection":                {"close, X-Mine", " x-yours "},
		"Keep-Alive":                {"timeout=5"},
		"Proxy-Authenticate":        {"Basic"},
		"Proxy-Authentication-Info": {"a"},
		"Proxy-Authorization":       {"Basic eA=="},
		"Proxy-Connection":          {"keep-alive"},
		"Te":                        {"trailers"},
		"Trailer":                   {"X-Sum"},
		"Transfer-Encoding":         {"chunked"},
		"Upgrade":                   {"websocket"},
		"X-Mine":                    {"1"},
		"X-Yours":                   {"2"},
		"Proxy-Status":              {"cache; hit"},
		"X-Kept":                    {"a", "b", "a"},
	}
	for name, copyHeader := range map[string]func(dst, src http.Header){"request": CopyRequestHeader, "trimmed request": copyTrimmed, "response": CopyResponseHeader} {
		dst := http.Header{"X-Own": {"1"}, "X-Kept": {"old"}}
		copyHeader(dst, src)
		want := http.Header{"X-Own": {"1"}, "Proxy-Status": {"cache; hit"}, "X-Kept": {"a", "b", "a"}}
		maps.DeleteFunc(dst, func(_ string, values []string) bool { return values == nil })
		if !maps.EqualFunc(dst, want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, dst, want)
		}
	}
}

func TestHeaderOfRequestLeavesOutOwnFields(t *testing.T) {
	for name, copyHeader := range map[string]func(dst, src http.Header){"copied": CopyRequestHeader, "trimmed": copyTrimmed} {
		dst := http.Header{}
		copyHeader(dst, http.Header{
			"Expect": {"100-continue"}, "Content-Length": {"7"}, "Authorization": {"Bearer k"}, "Traceparent": {"00-1-2-01"},
		})
		want := http.Header{"Authorization": {"Bearer k"}, "Traceparent": {"00-1-2-01"}, "User-Agent": nil}
		if !maps.EqualFunc(dst, want, slices.Equal) {
			t.Errorf("%s: %v, want %v", name, dst, want)
		}
	}
}

// copyTrimmed does with TrimRequestHeader what CopyRequestHeader does.
func copyTrimmed(dst, src http.Header) {
	src = src.Clone()
	TrimRequestHeader(src)
	maps.Copy(dst, src)
}

// No field of the slot protocol passes berth, in a request or in a response.
func TestHeaderCopyLeavesOutSlotProtocol(t *testing.T) {
	for name, copyHeader := range map[string]func(dst, src http.Header){
		"request": CopyRequestHeader, "trimmed request": copyTrimmed, "response": CopyResponseHeader,
	} {
		for _, field := range []string{
			"X-Reserved-Slot-Token", "X-Slot-Holder", "X-Slot-Secret", "X-Slot-Refused",
			"X-Num-Ongoing-Requests", "X-Slot-Instance", "X-Slot-Seq", "X-Slot-Own",
		} {
			dst := http.Header{}
			copyHeader(dst, http.Header{field: {"forged"}, "X-Request-Id": {"r"}})
			if values, passed := dst[field]; passed {
				t.Errorf("%s: %s passed as %q", name, field, values)
			}
			if !slices.Equal(dst["X-Request-Id"], []string{"r"}) {
				t.Errorf("%s: X-Request-Id beside %s became %q", name, field, dst["X-Request-Id"])
			}
		}
	}
}

func TestHeaderOfAgentKeepsItsSlotProtocol(t *testing.T) {
	dst := http.Header{"X-Slot-Seq": {"9"}}
	CopyResponseHeader(dst, http.Header{"X-Slot-Seq": {"forged"}})
	if got := dst["X-Slot-Seq"]; !slices.Equal(got, []string{"9"}) {
		t.Errorf("sequence number %v", got)
	}
}

func TestHeaderOfEventStreamDisablesBuffering(t *testing.T) {
	for _, test := range []struct {
		src                http.Header
		buffering, caching []string
	}{
		{http.Header{"Content-Type": {"Text/Event-Stream; charset=utf-8"}}, []string{"no"}, []string{"no-cache"}},
		{http.Header{"Content-Type": {"text/event-stream"}, "Cache-Control": {"no-store"}, "X-Accel-Buffering": {"yes"}},
			[]string{"yes"}, []string{"no-store"}},
		{http.Header{"Content-Type": {"text/event-stream-like"}}, nil, nil},
		{http.Header{}, nil, nil},
	} {
		dst := http.Header{}
		CopyResponseHeader(dst, test.src)
		if !slices.Equal(dst["X-Accel-Buffering"], test.buffering) || !slices.Equal(dst["Cache-Control"], test.caching) {
			t.Errorf("%v became %v", test.src, dst)
		}
	}
}

func TestHeaderCopyCanBeAddedTo(t *testing.T) {
	values := append(make([]string, 0, 4), "a")
	src, dst := http.Header{"Via": values}, http.Header{}
	CopyRequestHeader(dst, src)
	dst.Add("Via", "b")
	if got := values[:2]; got[1] != "" {
		t.Errorf("the slice of the source became %q", got)
	}
}
