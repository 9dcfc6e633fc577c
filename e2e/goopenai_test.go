package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"testing"

	goopenai "github.com/sashabaranov/go-openai"
)

// newCommunityClient returns a go-openai client of the server.
func newCommunityClient(t *testing.T, e *sdkServer) *goopenai.Client {
	config := goopenai.DefaultConfig("none")
	config.BaseURL = e.url + "/v1"
	config.HTTPClient = newClient(t, false)
	return goopenai.NewClientWithConfig(config)
}

// communityRequest returns a chat request.
func communityRequest(model string, tokens int) goopenai.ChatCompletionRequest {
	return goopenai.ChatCompletionRequest{
		Model:     model,
		Messages:  []goopenai.ChatCompletionMessage{{Role: goopenai.ChatMessageRoleUser, Content: "Hello"}},
		MaxTokens: tokens,
	}
}

func TestCommunityGoSDKIsServed(t *testing.T) {
	t.Parallel()
	e := serveSDKModels(t)
	client := newCommunityClient(t, e)
	buffered, err := client.CreateChatCompletion(t.Context(), communityRequest("demo", 9))
	if err != nil || buffered.Choices[0].Message.Content == "" {
		t.Fatalf("buffered response: %v, %v", buffered, err)
	}
	text, _, err := collectStream(t.Context(), client, communityRequest("demo", 9))
	if err != nil || text != buffered.Choices[0].Message.Content {
		t.Errorf("streamed %q, %v; want %q", text, err, buffered.Choices[0].Message.Content)
	}

	calling := communityRequest("demo", 5)
	calling.Tools = []goopenai.Tool{{Type: goopenai.ToolTypeFunction, Function: &goopenai.FunctionDefinition{Name: "get_weather"}}}
	calling.ToolChoice = "required"
	answer, err := client.CreateChatCompletion(t.Context(), calling)
	if err != nil {
		t.Fatal(err)
	}
	call := answer.Choices[0].Message.ToolCalls[0].Function
	if call.Name != "get_weather" || !json.Valid([]byte(call.Arguments)) {
		t.Errorf("tool call: %+v", call)
	}
	if _, arguments, err := collectStream(t.Context(), client, calling); err != nil || arguments != call.Arguments {
		t.Errorf("streamed tool call %q, %v; want %q", arguments, err, call.Arguments)
	}

	models, err := client.ListModels(t.Context())
	if err != nil || len(models.Models) != 6 || models.Models[1].ID != "assistant" {
		t.Errorf("models: %v, %v", models, err)
	}
}

// collectStream reads a stream and returns its text and the arguments of its tool call.
func collectStream(ctx context.Context, client *goopenai.Client, request goopenai.ChatCompletionRequest) (text, arguments string, err error) {
	stream, err := client.CreateChatCompletionStream(ctx, request)
	if err != nil {
		return "", "", err
	}
	defer stream.Close()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return text, arguments, nil
		}
		if err != nil {
			return text, arguments, err
		}
		for _, choice := range chunk.Choices {
			text += choice.Delta.Content
			for _, call := range choice.Delta.ToolCalls {
				arguments += call.Function.Arguments
			}
		}
	}
}

func TestCommunityGoSDKUnderstandsEveryRefusal(t *testing.T) {
	t.Parallel()
	e := serveSDKModels(t)
	client := newCommunityClient(t, e)
	for _, refusal := range []struct {
		model  string
		tokens int
		status int
		code   string
	}{
		{"unknown", 1, 404, "model_not_found"},
		{"demo", -1, 400, "400"}, // the engine's own error
		{"limited", 1, 429, "429"},
		{"full", 1, 429, "queue_full"},
	} {
		_, err := client.CreateChatCompletion(t.Context(), communityRequest(refusal.model, refusal.tokens))
		apiErr, ok := errors.AsType[*goopenai.APIError](err)
		if !ok || apiErr.HTTPStatusCode != refusal.status || fmt.Sprint(apiErr.Code) != refusal.code || apiErr.Message == "" {
			t.Errorf("%s: got %#v, want %d %s", refusal.model, err, refusal.status, refusal.code)
		}
	}
}

func TestCommunityGoSDKSeesABrokenStreamAndItsDisconnectIsSeen(t *testing.T) {
	t.Parallel()
	e := serveSDKModels(t)
	client := newCommunityClient(t, e)
	text, _, err := collectStream(t.Context(), client, communityRequest("dying", 50))
	if _, ok := errors.AsType[*goopenai.APIError](err); !ok || text == "" {
		t.Errorf("an aborted stream returned %q and %v", text, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.CreateChatCompletionStream(ctx, communityRequest("demo", 400_000))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	cancel()
	waitAborted(t, e.engines["demo"], 1)
}
