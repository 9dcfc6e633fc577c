package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"testing"

	goopenai "github.com/sashabaranov/go-openai"
)

func TestCommunityGoSDKCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	testMatrix(t, "go-openai", func(t *testing.T, base, ackURL string, scripts []script) func() []result {
		return runInProcess(t, "go-openai", ackURL, scripts, func(s *inProcessRun) map[string]func() error {
			config := goopenai.DefaultConfig("none")
			config.BaseURL = base
			config.HTTPClient = &http.Client{Transport: variantTransport{newClient(t, false).Transport, "go-openai"}}
			return (&communityRunner{s, goopenai.NewClientWithConfig(config)}).operations()
		})
	})
}

// variantTransport adds the name of the client variant to each request.
type variantTransport struct {
	http.RoundTripper
	variant string
}

func (m variantTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Variant", m.variant)
	return m.RoundTripper.RoundTrip(r)
}

// communityRunner runs scripts with go-openai.
type communityRunner struct {
	*inProcessRun
	*goopenai.Client
}

func (p *communityRunner) operations() map[string]func() error {
	return map[string]func() error{
		"models": func() error {
			list, err := p.ListModels(p.Context())
			if err == nil {
				p.set("ids", list.Models[0].ID)
			}
			return err
		},
		"chat":             func() error { return p.buffered(p.params()) },
		"tools":            func() error { return p.buffered(p.withTool()) },
		"structured":       func() error { return p.buffered(p.withSchema()) },
		"stream":           func() error { return p.stream(p.params()) },
		"toolStream":       func() error { return p.stream(p.withTool()) },
		"structuredStream": func() error { return p.stream(p.withSchema()) },
		"embeddings":       func() error { return p.embed(goopenai.EmbeddingEncodingFormatBase64) },
		"floats":           func() error { return p.embed(goopenai.EmbeddingEncodingFormatFloat) },
		"disconnect":       p.disconnectStream,
	}
}

func (p *communityRunner) params() goopenai.ChatCompletionRequest {
	return goopenai.ChatCompletionRequest{Model: scriptedModel, Messages: []goopenai.ChatCompletionMessage{{Role: goopenai.ChatMessageRoleUser, Content: p.prompt}}}
}

func (p *communityRunner) withTool() goopenai.ChatCompletionRequest {
	params := p.params()
	params.Tools = []goopenai.Tool{{Type: goopenai.ToolTypeFunction, Function: &goopenai.FunctionDefinition{Name: "weather"}}}
	return params
}

func (p *communityRunner) withSchema() goopenai.ChatCompletionRequest {
	params := p.params()
	params.ResponseFormat = &goopenai.ChatCompletionResponseFormat{
		Type:       goopenai.ChatCompletionResponseFormatTypeJSONSchema,
		JSONSchema: &goopenai.ChatCompletionResponseFormatJSONSchema{Name: "forecast", Schema: json.RawMessage(`{"type":"object"}`)},
	}
	return params
}

func (p *communityRunner) buffered(params goopenai.ChatCompletionRequest) error {
	resp, err := p.CreateChatCompletion(p.Context(), params)
	resp.SetHeader(nil)
	p.set("response", resp)
	return err
}

func (p *communityRunner) stream(params goopenai.ChatCompletionRequest) error {
	stream, err := p.CreateChatCompletionStream(p.Context(), params)
	if err != nil {
		return err
	}
	defer stream.Close()
	for {
		chunk, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		p.appendTo("chunks", chunk)
		for _, choice := range chunk.Choices {
			p.receiveText(choice.Delta.Content)
		}
	}
}

func (p *communityRunner) embed(format goopenai.EmbeddingEncodingFormat) error {
	resp, err := p.CreateEmbeddings(p.Context(), goopenai.EmbeddingRequestStrings{Model: scriptedModel, Input: []string{p.prompt, "two"}, EncodingFormat: format})
	p.set("vectors", resp.Data)
	return err
}

func (p *communityRunner) disconnectStream() error {
	stream, err := p.CreateChatCompletionStream(p.Context(), p.params())
	if err != nil {
		return err
	}
	for {
		chunk, err := stream.Recv()
		if err != nil {
			return err
		}
		if text := chunk.Choices[0].Delta.Content; text != "" {
			p.receiveText(text)
			return stream.Close()
		}
	}
}

// describeCommunityError returns the fields of an error of the SDK, or nil for other errors.
func describeCommunityError(err error) map[string]any {
	if e, ok := errors.AsType[*goopenai.APIError](err); ok {
		return map[string]any{"class": "APIError", "status": e.HTTPStatusCode, "code": e.Code, "message": e.Message, "param": e.Param, "type": e.Type}
	}
	if e, ok := errors.AsType[*goopenai.RequestError](err); ok {
		return map[string]any{"class": "RequestError", "status": e.HTTPStatusCode, "body": string(e.Body), "message": e.Error()}
	}
	return nil
}
