package simulated

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"

	openai "github.com/sashabaranov/go-openai"
)

const (
	defaultDimensions = 16
	maxDimensions     = 4096
)

// An embedding is a request for one vector per prompt: a task with prompts to compute and no tokens
// to generate.
type embedding struct {
	*task
	dimensions int
	base64     bool
}

func parseEmbedding(body []byte) (*embedding, error) {
	var in struct {
		Model          string                         `json:"model"`
		Input          json.RawMessage                `json:"input"`
		EncodingFormat openai.EmbeddingEncodingFormat `json:"encoding_format"`
		Dimensions     *int                           `json:"dimensions"`
	}
	if err := decodeJSON(body, &in); err != nil {
		return nil, err
	}
	prompts, err := parsePrompts(in.Input)
	if err != nil {
		return nil, err
	}
	t := &task{model: in.Model, choices: 1, finishReason: string(openai.FinishReasonStop)}
	e := &embedding{task: t.setPrompts(prompts...), dimensions: defaultDimensions}
	if in.Dimensions != nil {
		e.dimensions = *in.Dimensions
	}
	if e.dimensions < 1 || e.dimensions > maxDimensions {
		return nil, badRequest("dimensions must be between 1 and %d, got %d.", maxDimensions, e.dimensions)
	}
	switch in.EncodingFormat {
	case "", openai.EmbeddingEncodingFormatFloat:
	case openai.EmbeddingEncodingFormatBase64:
		e.base64 = true
	default:
		return nil, badRequest("encoding_format must be float or base64.")
	}
	return e, nil
}

func (e *embedding) render(usage openai.Usage) []byte {
	type item struct {
		Object    string `json:"object"`
		Index     int    `json:"index"`
		Embedding any    `json:"embedding"`
	}
	items := make([]item, len(e.prompts))
	for i := range e.prompts {
		vector := e.unitVector(e.choiceSeed(i, 0))
		items[i] = item{"embedding", i, vector}
		if e.base64 {
			var raw []byte
			for _, x := range vector {
				raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
			}
			items[i].Embedding = base64.StdEncoding.EncodeToString(raw)
		}
	}
	return mustEncode(struct {
		ID      string       `json:"id"`
		Object  string       `json:"object"`
		Created int64        `json:"created"`
		Model   string       `json:"model"`
		Data    []item       `json:"data"`
		Usage   openai.Usage `json:"usage"`
	}{"embd-" + e.id(), "list", created, e.model, items, usage})
}

// unitVector returns a vector of length 1, determined by the seed.
func (e *embedding) unitVector(seed uint64) []float32 {
	vector := make([]float32, e.dimensions)
	square := 0.0
	for i := range vector {
		x := float64(mix(seed+uint64(i))>>11)/(1<<52) - 1
		vector[i] = float32(x)
		square += x * x
	}
	for i := range vector {
		vector[i] /= float32(math.Sqrt(square))
	}
	return vector
}
