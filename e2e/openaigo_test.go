package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

// newOfficialClient returns a client of the official Go SDK for the server, without retries.
func newOfficialClient(e *sdkServer) openai.Client {
	return openai.NewClient(option.WithBaseURL(e.url+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

// officialRequest returns a chat request.
func officialRequest(model string, tokens int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model:     model,
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Hello")},
		MaxTokens: openai.Int(tokens),
	}
}

func TestOfficialGoSDKIsServed(t *testing.T) {
	t.Parallel()
	e := serveSDKModels(t)
	client := newOfficialClient(e)
	buffered, err := client.Chat.Completions.New(t.Context(), officialRequest("assistant", 9))
	if err != nil || buffered.Choices[0].Message.Content == "" || buffered.Usage.CompletionTokens != 9 {
		t.Fatalf("buffered response: %v, %v", buffered, err)
	}

	params := officialRequest("demo", 9)
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	streamed := accumulateStream(t, client, params)
	if got, want := streamed.Choices[0].Message.Content, buffered.Choices[0].Message.Content; got != want || streamed.Usage.CompletionTokens != 9 {
		t.Errorf("streamed %q with usage %v, want %q", got, streamed.Usage, want)
	}

	params = officialRequest("demo", 5)
	params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "get_weather"})}
	params.ToolChoice.OfAuto = openai.String("required")
	called, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range []*openai.ChatCompletion{called, accumulateStream(t, client, params)} {
		call := answer.Choices[0].Message.ToolCalls[0].Function
		if call.Name != "get_weather" || !json.Valid([]byte(call.Arguments)) {
			t.Errorf("tool call: %+v", call)
		}
	}
}

func TestOfficialGoSDKFindsTheOtherPaths(t *testing.T) {
	t.Parallel()
	client := newOfficialClient(serveSDKModels(t))
	text, err := client.Completions.New(t.Context(), openai.CompletionNewParams{
		Model: "demo", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once")},
	})
	if err != nil || text.Choices[0].Text == "" {
		t.Errorf("completions: %v, %v", text, err)
	}
	vectors, err := client.Embeddings.New(t.Context(), openai.EmbeddingNewParams{
		Model: "demo", Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}},
	})
	if err != nil || len(vectors.Data) != 2 {
		t.Errorf("embeddings: %v, %v", vectors, err)
	}
	models, err := client.Models.List(t.Context())
	if err != nil || len(models.Data) != 6 || models.Data[0].ID != "demo" {
		t.Errorf("models: %v, %v", models, err)
	}
	alias, err := client.Models.Get(t.Context(), "assistant")
	if err != nil || alias.ID != "assistant" {
		t.Errorf("model: %v, %v", alias, err)
	}
}

// accumulateStream reads a stream to the end.
func accumulateStream(t *testing.T, client openai.Client, params openai.ChatCompletionNewParams) *openai.ChatCompletion {
	t.Helper()
	var all openai.ChatCompletionAccumulator
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	defer stream.Close()
	for stream.Next() {
		all.AddChunk(stream.Current())
	}
	if stream.Err() != nil || len(all.Choices) == 0 {
		t.Fatalf("the stream ended with %d choices and %v", len(all.Choices), stream.Err())
	}
	return &all.ChatCompletion
}

func TestOfficialGoSDKUnderstandsEveryRefusal(t *testing.T) {
	t.Parallel()
	e := serveSDKModels(t)
	client := newOfficialClient(e)
	for _, refusal := range []struct {
		model  string
		tokens int64
		status int
		code   string
	}{
		{"unknown", 1, 404, "model_not_found"},
		{"demo", -1, 400, "400"}, // the engine's own error
		{"limited", 1, 429, "429"},
		{"full", 1, 429, "queue_full"},
	} {
		_, err := client.Chat.Completions.New(t.Context(), officialRequest(refusal.model, refusal.tokens))
		apiErr, ok := errors.AsType[*openai.Error](err)
		if !ok || apiErr.StatusCode != refusal.status || apiErr.Code != refusal.code || apiErr.Message == "" {
			t.Errorf("%s: got %#v, want %d %s", refusal.model, err, refusal.status, refusal.code)
		}
	}
}

func TestOfficialGoSDKSeesABrokenStreamAndItsDisconnectIsSeen(t *testing.T) {
	t.Parallel()
	e := serveSDKModels(t)
	client := newOfficialClient(e)
	aborted := client.Chat.Completions.NewStreaming(t.Context(), officialRequest("dying", 50))
	events := 0
	for aborted.Next() {
		events++
	}
	if aborted.Err() == nil || events == 0 {
		t.Errorf("the stream ended after %d events with %v", events, aborted.Err())
	}
	aborted.Close()

	stream := client.Chat.Completions.NewStreaming(t.Context(), officialRequest("demo", 400_000))
	if !stream.Next() {
		t.Fatal(stream.Err())
	}
	stream.Close()
	waitAborted(t, e.engines["demo"], 1)

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := client.Chat.Completions.New(ctx, officialRequest("silent", 5))
		ended <- err
	}()
	waitInFlight(t, e.engines["silent"], 1)
	cancel()
	waitAborted(t, e.engines["silent"], 1)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the canceled request returned %v", err)
	}
}
