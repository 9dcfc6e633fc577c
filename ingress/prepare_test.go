package ingress

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"pgregory.net/rapid"

	"berth/internal/body"
	"berth/internal/http1"
	"berth/internal/openai"
)

// hashPromptOf returns the block hashes of the prompt of a body, made while the body is scanned.
func hashPromptOf(t testing.TB, body []byte, model string, size int) []uint64 {
	h := openai.NewPromptHasher(size)
	defer h.Release()
	f, err := openai.ScanBody(nil, body, h)
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
	blocks, _ := h.Blocks(f, body, model, "", size)
	return blocks
}

func blocksOf(t testing.TB, body, model string, size int) []uint64 {
	t.Helper()
	return hashPromptOf(t, []byte(body), model, size)
}

// Large bodies are sent without a copy only if the transport recognizes their readers.
var _ http1.Sender = (*body.Reader)(nil)

func TestPrepareReplacesTheModelAndNoOtherByte(t *testing.T) {
	o := &body.Options{MaxBytes: 1 << 20, Budget: body.NewBudget(1 << 20)}
	rapid.Check(t, func(rt *rapid.T) {
		name := rapid.String().Draw(rt, "name")
		before := rapid.SampledFrom([]string{`{`, ` { "a" : [1, "model"],`, `{"mod\u0065ls":{"model":1},`}).Draw(rt, "before") +
			rapid.SampledFrom([]string{`"model":`, "\"mod\\u0065l\" :\n"}).Draw(rt, "key")
		value := rapid.SampledFrom([]string{`null`, `""`, `"a"`, `"\"\\\u00e9"`}).Draw(rt, "value")
		after := rapid.SampledFrom([]string{`}`, ` , "stream":true}` + "\n", `,"messages":[{"content":"model"}]}`}).Draw(rt, "after")

		b, err := body.Read(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader(before+value+after)), o)
		if err != nil {
			rt.Fatal(err)
		}
		defer b.Release()
		fields, err := openai.ScanBody(nil, b.Bytes(), nil)
		if err != nil {
			rt.Fatal(err)
		}
		x := proxyRequest{body: b}
		x.replaceModel(fields, name)
		if string(b.Bytes()) != before+value+after {
			rt.Fatalf("Bytes changed: %s", b.Bytes())
		}
		r := b.NewReader()
		defer r.Close()
		sent, err := io.ReadAll(iotest.OneByteReader(r))
		if err != nil || int64(len(sent)) != b.Size() {
			rt.Fatalf("%d bytes sent of %d: %v", len(sent), b.Size(), err)
		}
		again, err := openai.ScanBody(nil, sent, nil)
		if err != nil || string(again.Model) != name {
			rt.Fatalf("sent %s: model %q, %v", sent, again.Model, err)
		}
		if string(sent[:again.ModelAt.Start]) != before || string(sent[again.ModelAt.End:]) != after {
			rt.Fatalf("sent %s", sent)
		}
	})
}
