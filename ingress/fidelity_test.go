package ingress

import (
	"io"
	"net/http"
	"strings"
	"testing"
)

// odd are JSON members that decoding and encoding would change.
var odd = map[string]string{
	"unknown fields":       `"ignore_eos":true,"nvext":{"a":[{}]},"chat_template_kwargs":null,"lora_path":""`,
	"numbers":              `"a":1e400,"b":-0.0,"c":1E+2,"d":123456789012345678901234567890,"e":0.10000000000000000555,"f":1.0`,
	"order and repetition": `"z":1,"a":2,"m":3,"z":4`,
	"white space":          "\"a\" :\t[ 1 ,\r\n2 ] ,\n\n\"b\":{ }",
	"escapes":              `"\u0061\/":"\u00e9\/\ud83d\ude00\b\f\u0000","é":"<>&"`,
	"escaped known keys":   `"\u0073tream":false,"m\u0065ssages":[]`,
	"half surrogates":      `"a":"\ud800","b":"\udc00\ud800"`,
	"invalid UTF-8":        "\"a\":\"\xff\xfe\xc3\",\"\x80\":1,\"b\":\"\xed\xa0\x80\"",
	"deep nesting":         `"a":` + strings.Repeat(`[{"a":`, 500) + "1" + strings.Repeat("}]", 500),
	"empty names":          `"":{"":[]},"a":""`,
	"separators":           "\"a\":\"\u2028\u2029\ufeff\u0085\x7f\"",
	"a long text":          `"prompt":"` + strings.Repeat("é\\n", 100_000) + `"`,
	"a model further in":   `"a":{"model":"alias"},"models":["alias"],"Model":"alias"`,
	"nulls":                `"stop":null,"logprobs":null,"messages":null,"user":null`,
	"base64":               `"encoding_format":"base64","input":[[1,2],[3]]`,
}

func TestFidelityRequest(t *testing.T) {
	url, requests := recording(t)
	m := modelOn("m", url)
	m.ServedName, m.Aliases = "served/é", []string{"alias"}
	f := serve(t, m)
	for name, members := range odd {
		for _, client := range []*http.Client{f.h1, f.h2} {
			for _, where := range []string{"before", "behind"} {
				body := "\r\n { \"model\"\t: \"alias\" ," + members + "}\n"
				if where == "behind" {
					body = "{" + members + ` , "mod\u0065l":"m"}`
				}
				want := strings.Replace(strings.Replace(body, `: "alias" ,`, `: "served/é" ,`, 1), `l":"m"}`, `l":"served/é"}`, 1)
				// A reader without a length makes the client send chunks.
				for _, upload := range []io.Reader{strings.NewReader(body), io.MultiReader(strings.NewReader(body))} {
					if r := f.do(t.Context(), client, "POST", "/v1/completions", upload); r.body != "ok" {
						t.Fatalf("%s: got %d %s", name, r.StatusCode, r.body)
					}
					if s := receive(t, requests); s.body != want || s.length != int64(len(want)) {
						t.Errorf("%s: of\n%.300q\ncame\n%.300q", name, body, s.body)
					}
				}
			}
		}
	}
}

// Responses of engines pass unchanged, however odd: nothing is decoded.
func TestFidelityResponse(t *testing.T) {
	answers := make(chan string, 1)
	f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8; x=y")
		io.WriteString(w, <-answers)
	})))
	for name, members := range odd {
		for _, path := range []string{"/v1/chat/completions", "/v1/embeddings", "/v1/responses", "/v1/messages", "/rerank", "/tokenize"} {
			body := "{" + members + "}\r\n\x00"
			answers <- body
			if r := f.post(path, chat("m")); r.body != body || r.Header.Get("Content-Type") != "application/json; charset=utf-8; x=y" {
				t.Errorf("%s from %s came as %.300q, %s", name, path, r.body, r.Header.Get("Content-Type"))
			}
		}
	}
}

// A stream requested with Accept-Encoding is not compressed, and proxies are told not to buffer it.
func TestFidelityEventStream(t *testing.T) {
	for own, want := range map[string]string{"": "no", "yes": "yes"} {
		f := serve(t, modelOn("m", upstream(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			if own != "" {
				w.Header().Set("X-Accel-Buffering", own)
			}
			io.WriteString(w, "event: x\nid: 1\nretry: 2\n: ping\ndata:{}\r\n\r\ndata: [DONE]\n\n")
		})))
		for _, client := range []*http.Client{f.h1, f.h2} {
			r := f.do(t.Context(), client, "POST", "/v1/completions", strings.NewReader(chat("m")), "Accept-Encoding", "gzip, br")
			if r.body != "event: x\nid: 1\nretry: 2\n: ping\ndata:{}\r\n\r\ndata: [DONE]\n\n" || r.Header.Get("Content-Encoding") != "" {
				t.Errorf("got %q, %v", r.body, r.Header)
			}
			if got := r.Header.Get("X-Accel-Buffering"); got != want || r.Header.Get("Content-Type") != "text/event-stream; charset=utf-8" {
				t.Errorf("of %q came %v", own, r.Header)
			}
		}
	}
}

func TestFidelityTraceAndRequestHeaders(t *testing.T) {
	url, requests := recording(t)
	f := serve(t, modelOn("m", url))
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	f.post("/v1/completions", chat("m"), "Traceparent", trace, "Tracestate", "a=b", "X-Request-Id", "mine", "X-Stainless-Retry-Count", "1",
		"X-Slo-Ttft-Ms", "100", "Openai-Project", "p")
	h := receive(t, requests).header
	for name, want := range map[string]string{"Traceparent": trace, "Tracestate": "a=b", "X-Request-Id": "mine", "X-Stainless-Retry-Count": "1",
		"X-Slo-Ttft-Ms": "100", "Openai-Project": "p"} {
		if h.Get(name) != want {
			t.Errorf("%s came as %q", name, h.Get(name))
		}
	}
}
