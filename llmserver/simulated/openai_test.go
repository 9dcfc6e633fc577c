package simulated

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	openai "github.com/sashabaranov/go-openai"
)

var chatRequest = openai.ChatCompletionRequest{
	Model:     "demo",
	Messages:  []openai.ChatCompletionMessage{{Role: "user", Content: strings.Repeat("Tell me a story. ", 20)}},
	MaxTokens: 20,
}

const chatBody = `{"model":"demo","messages":[{"role":"user","content":"hello"}],"max_tokens":5`

func TestSimulatedChatAndStreamHaveTheSameWords(t *testing.T) {
	c := newClient(t, mustListen(t, atOnce))
	request := chatRequest
	request.N = 2
	whole, err := c.CreateChatCompletion(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	if u := whole.Usage; u.CompletionTokens != 40 || u.PromptTokens < 80 || u.TotalTokens != u.PromptTokens+40 || u.PromptTokensDetails.CachedTokens != 0 {
		t.Errorf("usage %+v, %+v", u, u.PromptTokensDetails)
	}
	request.StreamOptions = &openai.StreamOptions{IncludeUsage: true}
	stream, err := c.CreateChatCompletionStream(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	texts, reasons := make([]string, 2), make([]openai.FinishReason, 2)
	var usage *openai.Usage
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if usage != nil {
			t.Error("a chunk after the usage")
		}
		usage = chunk.Usage
		for _, choice := range chunk.Choices {
			texts[choice.Index] += choice.Delta.Content
			reasons[choice.Index] = choice.FinishReason
		}
	}
	for i, choice := range whole.Choices {
		if choice.Message.Content != texts[i] || len(texts[i]) != 80 {
			t.Errorf("choice %d: whole %q, streamed %q", i, choice.Message.Content, texts[i])
		}
		if choice.FinishReason != openai.FinishReasonLength || reasons[i] != openai.FinishReasonLength {
			t.Errorf("choice %d finished with %q and %q", i, choice.FinishReason, reasons[i])
		}
	}
	if texts[0] == texts[1] {
		t.Error("two choices say the same")
	}
	if cached := usage.PromptTokensDetails.CachedTokens; cached != (usage.PromptTokens-1)/16*16 {
		t.Errorf("%d of %d tokens cached the second time", cached, usage.PromptTokens)
	}
}

func TestSimulatedStreamIsFramedLikeVLLM(t *testing.T) {
	s := mustListen(t, atOnce)
	resp, got, err := post(t, httpClient(t), s.URL()+"/v1/completions", `{"prompt":"hello","max_tokens":2,"stream":true,"stream_options":{"include_usage":true}}`)
	if err != nil {
		t.Fatal(err)
	}
	task, _ := parseCompletion([]byte(`{"prompt":"hello","max_tokens":2}`))
	voice := task.choiceSeed(0, 0)
	chunk := `data: {"id":"cmpl-` + task.id() + `","object":"text_completion","created":1700000000,"model":"demo","choices":[`
	want := chunk + `{"index":0,"text":"` + word(voice, 0) + `","logprobs":null,"finish_reason":null}]}` + "\n\n" +
		chunk + `{"index":0,"text":"` + word(voice, 1) + `","logprobs":null,"finish_reason":"length","stop_reason":null}]}` + "\n\n" +
		chunk + `],"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4,"prompt_tokens_details":{"audio_tokens":0,"cached_tokens":0},"completion_tokens_details":null}}` + "\n\n" +
		"data: [DONE]\n\n"
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if kind := resp.Header.Get("Content-Type"); kind != "text/event-stream; charset=utf-8" {
		t.Errorf("content type %q", kind)
	}
}

func TestSimulatedEqualRequestsGetEqualBytes(t *testing.T) {
	a, b := mustListen(t, atOnce), mustListen(t, atOnce)
	for path, body := range map[string]string{
		"/v1/chat/completions": chatBody + `,"n":3,"stream":true}`,
		"/v1/completions":      `{"prompt":["one","two",  "three"],"n":2,"stream":true}`,
		"/v1/embeddings":       `{"input":"some text"}`,
	} {
		_, first, err := post(t, httpClient(t), a.URL()+path, body)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			if _, again, err := post(t, httpClient(t), b.URL()+path, body); err != nil || again != first {
				t.Fatalf("%s: %v\n%s\n%s", path, err, again, first)
			}
		}
	}
	_, one, _ := post(t, httpClient(t), a.URL()+"/v1/completions", `{"prompt":"one","stream":true}`)
	_, two, _ := post(t, httpClient(t), a.URL()+"/v1/completions", `{"prompt":"two","stream":true}`)
	if one == two {
		t.Error("different prompts get the same response")
	}
}

func TestSimulatedToolCallStreamsNameThenArguments(t *testing.T) {
	c := newClient(t, mustListen(t, atOnce))
	request := chatRequest
	request.Tools = []openai.Tool{{Type: "function", Function: &openai.FunctionDefinition{Name: "look_up"}}}
	request.ToolChoice = "required"
	whole, err := c.CreateChatCompletion(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	call := whole.Choices[0].Message.ToolCalls[0]
	stream, err := c.CreateChatCompletionStream(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	var streamed openai.ToolCall
	for n := 0; ; n++ {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, delta := range chunk.Choices[0].Delta.ToolCalls {
			if n == 1 {
				streamed = delta
			}
			if (n == 1) != (delta.ID != "") {
				t.Errorf("event %d carries the id %q", n, delta.ID)
			}
			streamed.Function.Arguments += delta.Function.Arguments
		}
	}
	if streamed.ID != call.ID || streamed.Function != call.Function || call.Function.Name != "look_up" {
		t.Errorf("whole %+v, streamed %+v", call, streamed)
	}
	if !json.Valid([]byte(call.Function.Arguments)) || whole.Choices[0].FinishReason != openai.FinishReasonToolCalls {
		t.Errorf("arguments %q, finished with %q", call.Function.Arguments, whole.Choices[0].FinishReason)
	}
}

func TestSimulatedEmbeddingsAreEqualInBothEncodings(t *testing.T) {
	s := mustListen(t, atOnce)
	request := openai.EmbeddingRequest{Input: []string{"one", "two"}, Model: "demo", Dimensions: 8}
	floats, err := newClient(t, s).CreateEmbeddings(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	request.EncodingFormat = openai.EmbeddingEncodingFormatBase64
	packed, err := newClient(t, s).CreateEmbeddings(t.Context(), request)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if a, b := floats.Data[i].Embedding, packed.Data[i].Embedding; !slices.Equal(a, b) || len(a) != 8 {
			t.Errorf("%v, %v", a, b)
		}
	}
	if slices.Equal(floats.Data[0].Embedding, floats.Data[1].Embedding) || floats.Usage.TotalTokens != 2 {
		t.Errorf("%+v", floats)
	}
	if s.Engine().Stats().GeneratedTokens != 0 {
		t.Error("an embedding generated tokens")
	}
}

func TestSimulatedErrorsHaveOpenAIFormat(t *testing.T) {
	config := atOnce
	config.KVCacheTokens = 64
	s := mustListen(t, config)
	for _, c := range []struct {
		body   string
		status int
		kind   string
	}{
		{`{`, 400, "BadRequestError"},
		{`{"model":"other","messages":[{"role":"user","content":"x"}]}`, 404, "NotFoundError"},
		{`{"model":"demo","messages":[{"role":"user","content":"x"}],"max_tokens":100}`, 400, "BadRequestError"},
	} {
		resp, body, err := post(t, httpClient(t), s.URL()+"/v1/chat/completions", c.body)
		var response openai.ErrorResponse
		if err != nil || json.Unmarshal([]byte(body), &response) != nil || resp.StatusCode != c.status || response.Error.Type != c.kind ||
			!strings.Contains(body, `"param":null`) || response.Error.Message == "" {
			t.Errorf("%s: %v %s", c.body, err, body)
		}
	}
	if got, want := s.Engine().Stats(), (Stats{Requests: 3, Rejected: 3, MaxInFlight: 1, Connections: 3}); got != want {
		t.Errorf("stats %+v, want %+v", got, want)
	}
}

func TestSimulatedHeadersNameReplicaAndRequest(t *testing.T) {
	config := atOnce
	config.ID = "r7"
	s := mustListen(t, config)
	req, _ := http.NewRequestWithContext(t.Context(), "GET", s.URL()+"/v1/models", nil)
	req.Header.Set("X-Request-Id", "abc")
	resp, err := httpClient(t).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.Header.Get("X-Simulated-Replica") != "r7" || resp.Header.Get("X-Request-Id") != "abc" {
		t.Errorf("%v", resp.Header)
	}
	list, err := newClient(t, s).ListModels(t.Context())
	if err != nil || len(list.Models) != 1 || list.Models[0].ID != "demo" {
		t.Errorf("%+v, %v", list, err)
	}
}
