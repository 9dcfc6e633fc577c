package e2e

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
	"github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
)

func TestOfficialGoSDKCannotTellBerthFromItsUpstream(t *testing.T) {
	t.Parallel()
	matrix(t, "openai-go", func(t *testing.T, base, heard string, acts []act) func() []result {
		return playInProcess(t, "openai-go", heard, acts, func(s *inProcess) map[string]func() error {
			options := []option.RequestOption{option.WithBaseURL(base), option.WithAPIKey("none"), option.WithHTTPClient(newClient(t, false)), option.WithHeader("X-Way", "openai-go")}
			if s.retries != nil {
				options = append(options, option.WithMaxRetries(*s.retries))
			}
			return (&officialPlayer{s, openai.NewClient(options...)}).acts()
		})
	})
}

// officialPlayer plays scenes with the official Go SDK.
type officialPlayer struct {
	*inProcess
	openai.Client
}

func (p *officialPlayer) acts() map[string]func() error {
	return map[string]func() error{
		"models": func() error {
			page, err := p.Models.List(p.Context())
			if err == nil {
				p.tell("ids", page.Data[0].ID)
			}
			return err
		},
		"model": func() error {
			m, err := p.Models.Get(p.Context(), scriptedModel)
			if err == nil {
				p.tell("id", m.ID)
			}
			return err
		},
		"chat":             func() error { return p.whole(p.params()) },
		"tools":            func() error { return p.whole(p.withTool()) },
		"structured":       func() error { return p.whole(p.withSchema()) },
		"stream":           func() error { return p.stream(p.params()) },
		"toolStream":       func() error { return p.stream(p.withTool()) },
		"structuredStream": func() error { return p.stream(p.withSchema()) },
		"embeddings":       func() error { return p.embed(openai.EmbeddingNewParamsEncodingFormatBase64) },
		"floats":           func() error { return p.embed(openai.EmbeddingNewParamsEncodingFormatFloat) },
		"response":         p.response,
		"responseStream":   p.responseStream,
		"leave":            p.leaveStream,
	}
}

func (p *officialPlayer) params() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: scriptedModel, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(p.prompt)}}
}

func (p *officialPlayer) withTool() openai.ChatCompletionNewParams {
	params := p.params()
	params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "weather"})}
	return params
}

func (p *officialPlayer) withSchema() openai.ChatCompletionNewParams {
	params := p.params()
	params.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "forecast", Schema: json.RawMessage(`{"type":"object"}`)},
	}
	return params
}

func (p *officialPlayer) whole(params openai.ChatCompletionNewParams) error {
	answer, err := p.Chat.Completions.New(p.Context(), params)
	if err != nil {
		return err
	}
	p.tell("answer", answer.RawJSON())
	if len(answer.Choices) > 0 {
		p.tell("message", answer.Choices[0].Message.Content)
	}
	return nil
}

func (p *officialPlayer) stream(params openai.ChatCompletionNewParams) error {
	stream := p.Chat.Completions.NewStreaming(p.Context(), params)
	defer stream.Close()
	var all openai.ChatCompletionAccumulator
	for stream.Next() {
		chunk := stream.Current()
		all.AddChunk(chunk)
		p.add("chunks", chunk.RawJSON())
		for _, choice := range chunk.Choices {
			p.hear(choice.Delta.Content)
		}
	}
	p.tell("choices", all.Choices)
	return stream.Err()
}

func (p *officialPlayer) embed(format openai.EmbeddingNewParamsEncodingFormat) error {
	answer, err := p.Embeddings.New(p.Context(), openai.EmbeddingNewParams{
		Model: scriptedModel, EncodingFormat: format, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{p.prompt, "two"}},
	})
	if err == nil {
		p.tell("answer", answer.RawJSON())
	}
	return err
}

func (p *officialPlayer) input() responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: scriptedModel, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(p.prompt)}}
}

func (p *officialPlayer) response() error {
	answer, err := p.Responses.New(p.Context(), p.input())
	if err == nil {
		p.tell("answer", answer.OutputText())
	}
	return err
}

func (p *officialPlayer) responseStream() error {
	stream := p.Responses.NewStreaming(p.Context(), p.input())
	defer stream.Close()
	for stream.Next() {
		p.add("events", stream.Current().RawJSON())
	}
	return stream.Err()
}

func (p *officialPlayer) leaveStream() error {
	stream := p.Chat.Completions.NewStreaming(p.Context(), p.params())
	for stream.Next() {
		if text := stream.Current().Choices[0].Delta.Content; text != "" {
			p.hear(text)
			break
		}
	}
	return stream.Close()
}

// officialError is what the SDK tells of an error.
func officialError(err error) map[string]any {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		said := map[string]any{"class": "Error", "status": e.StatusCode, "code": e.Code, "message": e.Message, "param": e.Param, "type": e.Type, "raw": e.RawJSON()}
		return withHeaders(said, e.Response.Header)
	}
	if e, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return map[string]any{"class": "StreamError", "message": e.Message}
	}
	return nil
}
