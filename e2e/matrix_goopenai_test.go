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
	matrix(t, "go-openai", func(t *testing.T, base, heard string, acts []act) func() []result {
		return playInProcess(t, "go-openai", heard, acts, func(s *inProcess) map[string]func() error {
			config := goopenai.DefaultConfig("none")
			config.BaseURL = base
			config.HTTPClient = &http.Client{Transport: marked{newClient(t, false).Transport, "go-openai"}}
			return (&communityPlayer{s, goopenai.NewClientWithConfig(config)}).acts()
		})
	})
}

// marked says in each request which way it comes.
type marked struct {
	http.RoundTripper
	way string
}

func (m marked) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Way", m.way)
	return m.RoundTripper.RoundTrip(r)
}

// communityPlayer plays scenes with go-openai.
type communityPlayer struct {
	*inProcess
	*goopenai.Client
}

func (p *communityPlayer) acts() map[string]func() error {
	return map[string]func() error{
		"models": func() error {
			list, err := p.ListModels(p.Context())
			if err == nil {
				p.tell("ids", list.Models[0].ID)
			}
			return err
		},
		"chat":             func() error { return p.whole(p.params()) },
		"tools":            func() error { return p.whole(p.withTool()) },
		"structured":       func() error { return p.whole(p.withSchema()) },
		"stream":           func() error { return p.stream(p.params()) },
		"toolStream":       func() error { return p.stream(p.withTool()) },
		"structuredStream": func() error { return p.stream(p.withSchema()) },
		"embeddings":       func() error { return p.embed(goopenai.EmbeddingEncodingFormatBase64) },
		"floats":           func() error { return p.embed(goopenai.EmbeddingEncodingFormatFloat) },
		"leave":            p.leaveStream,
	}
}

func (p *communityPlayer) params() goopenai.ChatCompletionRequest {
	return goopenai.ChatCompletionRequest{Model: scriptedModel, Messages: []goopenai.ChatCompletionMessage{{Role: goopenai.ChatMessageRoleUser, Content: p.prompt}}}
}

func (p *communityPlayer) withTool() goopenai.ChatCompletionRequest {
	params := p.params()
	params.Tools = []goopenai.Tool{{Type: goopenai.ToolTypeFunction, Function: &goopenai.FunctionDefinition{Name: "weather"}}}
	return params
}

func (p *communityPlayer) withSchema() goopenai.ChatCompletionRequest {
	params := p.params()
	params.ResponseFormat = &goopenai.ChatCompletionResponseFormat{
		Type:       goopenai.ChatCompletionResponseFormatTypeJSONSchema,
		JSONSchema: &goopenai.ChatCompletionResponseFormatJSONSchema{Name: "forecast", Schema: json.RawMessage(`{"type":"object"}`)},
	}
	return params
}

func (p *communityPlayer) whole(params goopenai.ChatCompletionRequest) error {
	answer, err := p.CreateChatCompletion(p.Context(), params)
	answer.SetHeader(nil)
	p.tell("answer", answer)
	return err
}

func (p *communityPlayer) stream(params goopenai.ChatCompletionRequest) error {
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
		p.add("chunks", chunk)
		for _, choice := range chunk.Choices {
			p.hear(choice.Delta.Content)
		}
	}
}

func (p *communityPlayer) embed(format goopenai.EmbeddingEncodingFormat) error {
	answer, err := p.CreateEmbeddings(p.Context(), goopenai.EmbeddingRequestStrings{Model: scriptedModel, Input: []string{p.prompt, "two"}, EncodingFormat: format})
	p.tell("vectors", answer.Data)
	return err
}

func (p *communityPlayer) leaveStream() error {
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
			p.hear(text)
			return stream.Close()
		}
	}
}

// communityError is what the SDK tells of an error.
func communityError(err error) map[string]any {
	if e, ok := errors.AsType[*goopenai.APIError](err); ok {
		return map[string]any{"class": "APIError", "status": e.HTTPStatusCode, "code": e.Code, "message": e.Message, "param": e.Param, "type": e.Type}
	}
	if e, ok := errors.AsType[*goopenai.RequestError](err); ok {
		return map[string]any{"class": "RequestError", "status": e.HTTPStatusCode, "body": string(e.Body), "message": e.Error()}
	}
	return nil
}
