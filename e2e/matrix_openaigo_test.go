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
	testMatrix(t, "openai-go", func(t *testing.T, base, ackURL string, scripts []script) func() []result {
		return runInProcess(t, "openai-go", ackURL, scripts, func(s *inProcessRun) map[string]func() error {
			options := []option.RequestOption{option.WithBaseURL(base), option.WithAPIKey("none"), option.WithHTTPClient(newClient(t, false)), option.WithHeader("X-Variant", "openai-go")}
			if s.retries != nil {
				options = append(options, option.WithMaxRetries(*s.retries))
			}
			return (&officialRunner{s, openai.NewClient(options...)}).operations()
		})
	})
}

// officialRunner runs scripts with the official Go SDK.
type officialRunner struct {
	*inProcessRun
	openai.Client
}

func (p *officialRunner) operations() map[string]func() error {
	return map[string]func() error{
		"models": func() error {
			page, err := p.Models.List(p.Context())
			if err == nil {
				p.set("ids", page.Data[0].ID)
			}
			return err
		},
		"model": func() error {
			m, err := p.Models.Get(p.Context(), scriptedModel)
			if err == nil {
				p.set("id", m.ID)
			}
			return err
		},
		"chat":             func() error { return p.buffered(p.params()) },
		"tools":            func() error { return p.buffered(p.withTool()) },
		"structured":       func() error { return p.buffered(p.withSchema()) },
		"stream":           func() error { return p.stream(p.params()) },
		"toolStream":       func() error { return p.stream(p.withTool()) },
		"structuredStream": func() error { return p.stream(p.withSchema()) },
		"embeddings":       func() error { return p.embed(openai.EmbeddingNewParamsEncodingFormatBase64) },
		"floats":           func() error { return p.embed(openai.EmbeddingNewParamsEncodingFormatFloat) },
		"response":         p.response,
		"responseStream":   p.responseStream,
		"disconnect":       p.disconnectStream,
	}
}

func (p *officialRunner) params() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: scriptedModel, Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(p.prompt)}}
}

func (p *officialRunner) withTool() openai.ChatCompletionNewParams {
	params := p.params()
	params.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "weather"})}
	return params
}

func (p *officialRunner) withSchema() openai.ChatCompletionNewParams {
	params := p.params()
	params.ResponseFormat.OfJSONSchema = &shared.ResponseFormatJSONSchemaParam{
		JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "forecast", Schema: json.RawMessage(`{"type":"object"}`)},
	}
	return params
}

func (p *officialRunner) buffered(params openai.ChatCompletionNewParams) error {
	resp, err := p.Chat.Completions.New(p.Context(), params)
	if err != nil {
		return err
	}
	p.set("response", resp.RawJSON())
	if len(resp.Choices) > 0 {
		p.set("message", resp.Choices[0].Message.Content)
	}
	return nil
}

func (p *officialRunner) stream(params openai.ChatCompletionNewParams) error {
	stream := p.Chat.Completions.NewStreaming(p.Context(), params)
	defer stream.Close()
	var all openai.ChatCompletionAccumulator
	for stream.Next() {
		chunk := stream.Current()
		all.AddChunk(chunk)
		p.appendTo("chunks", chunk.RawJSON())
		for _, choice := range chunk.Choices {
			p.receiveText(choice.Delta.Content)
		}
	}
	p.set("choices", all.Choices)
	return stream.Err()
}

func (p *officialRunner) embed(format openai.EmbeddingNewParamsEncodingFormat) error {
	resp, err := p.Embeddings.New(p.Context(), openai.EmbeddingNewParams{
		Model: scriptedModel, EncodingFormat: format, Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{p.prompt, "two"}},
	})
	if err == nil {
		p.set("response", resp.RawJSON())
	}
	return err
}

func (p *officialRunner) input() responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: scriptedModel, Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(p.prompt)}}
}

func (p *officialRunner) response() error {
	resp, err := p.Responses.New(p.Context(), p.input())
	if err == nil {
		p.set("response", resp.OutputText())
	}
	return err
}

func (p *officialRunner) responseStream() error {
	stream := p.Responses.NewStreaming(p.Context(), p.input())
	defer stream.Close()
	for stream.Next() {
		p.appendTo("events", stream.Current().RawJSON())
	}
	return stream.Err()
}

func (p *officialRunner) disconnectStream() error {
	stream := p.Chat.Completions.NewStreaming(p.Context(), p.params())
	for stream.Next() {
		if text := stream.Current().Choices[0].Delta.Content; text != "" {
			p.receiveText(text)
			break
		}
	}
	return stream.Close()
}

// describeOfficialError returns the fields of an error of the SDK, or nil for other errors.
func describeOfficialError(err error) map[string]any {
	if e, ok := errors.AsType[*openai.Error](err); ok {
		fields := map[string]any{"class": "Error", "status": e.StatusCode, "code": e.Code, "message": e.Message, "param": e.Param, "type": e.Type, "raw": e.RawJSON()}
		return addHeaders(fields, e.Response.Header)
	}
	if e, ok := errors.AsType[*ssestream.StreamError](err); ok {
		return map[string]any{"class": "StreamError", "message": e.Message}
	}
	return nil
}
