package simulated

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/cespare/xxhash/v2"
	openai "github.com/sashabaranov/go-openai"
)

const (
	defaultMaxTokens = 64   // without max_tokens in the request
	maxChoices       = 128  // n
	maxPrompts       = 2048 // prompts of one request
)

// An apiError is a response in OpenAI's error format.
type apiError struct {
	status  int
	kind    string
	message string
}

func (p *apiError) Error() string { return p.message }

func badRequest(format string, args ...any) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", fmt.Sprintf(format, args...)}
}

// commonFields are the fields shared by chat and completion bodies. Unknown fields are ignored, as
// by engines.
type commonFields struct {
	Model         string                `json:"model"`
	Stream        bool                  `json:"stream"`
	StreamOptions *openai.StreamOptions `json:"stream_options"`
	N             *int                  `json:"n"`
	MaxTokens     *int                  `json:"max_tokens"`
}

func (s *commonFields) task(limit *int) (*task, error) {
	t := &task{model: s.Model, stream: s.Stream, choices: 1, maxTokens: defaultMaxTokens, finishReason: string(openai.FinishReasonStop)}
	if s.StreamOptions != nil {
		t.includeUsage = s.StreamOptions.IncludeUsage
	}
	if s.N != nil {
		t.choices = *s.N
	}
	if limit != nil {
		t.maxTokens, t.finishReason = *limit, string(openai.FinishReasonLength)
	}
	if t.choices < 1 || t.choices > maxChoices {
		return nil, badRequest("n must be between 1 and %d, got %d.", maxChoices, t.choices)
	}
	if t.maxTokens < 1 || t.maxTokens > 1<<30 {
		return nil, badRequest("max_tokens must be at least 1 and fit the context, got %d.", t.maxTokens)
	}
	return t, nil
}

func parseCompletion(body []byte) (*task, error) {
	var in struct {
		commonFields
		Prompt json.RawMessage `json:"prompt"`
	}
	if err := decodeJSON(body, &in); err != nil {
		return nil, err
	}
	t, err := in.task(in.MaxTokens)
	if err != nil {
		return nil, err
	}
	prompts, err := parsePrompts(in.Prompt)
	if err != nil {
		return nil, err
	}
	return t.setPrompts(prompts...), nil
}

func parseChat(body []byte) (*task, error) {
	var in struct {
		commonFields
		MaxCompletionTokens *int            `json:"max_completion_tokens"`
		Messages            []message       `json:"messages"`
		Tools               json.RawMessage `json:"tools"`
		ToolChoice          json.RawMessage `json:"tool_choice"`
	}
	if err := decodeJSON(body, &in); err != nil {
		return nil, err
	}
	if len(in.Messages) == 0 {
		return nil, badRequest("messages must be a list with at least one message.")
	}
	limit := in.MaxCompletionTokens
	if limit == nil {
		limit = in.MaxTokens
	}
	t, err := in.task(limit)
	if err != nil {
		return nil, err
	}
	t.chat = true
	if t.tool, err = chosenTool(in.Tools, in.ToolChoice); err != nil {
		return nil, err
	}
	if t.tool != "" {
		t.finishReason = string(openai.FinishReasonToolCalls)
	}
	prompt, err := renderChat(in.Tools, in.Messages)
	if err != nil {
		return nil, err
	}
	return t.setPrompts(prompt), nil
}

type message struct {
	Role      string          `json:"role"`
	Content   json.RawMessage `json:"content"` // a string, a list of parts, or null
	ToolCalls json.RawMessage `json:"tool_calls"`
}

// renderChat applies the chat template: the tools, each message after a marker of its role, then
// the assistant's marker.
func renderChat(tools json.RawMessage, messages []message) (tokens []token, err error) {
	if isPresent(tools) {
		tokens = tokenize(tokenize(tokens, "<|tools|>"), string(tools))
	}
	for _, m := range messages {
		tokens = tokenize(tokens, "<|"+m.Role+"|>")
		if tokens, err = renderContent(tokens, m.Content); err != nil {
			return nil, err
		}
		if isPresent(m.ToolCalls) {
			tokens = tokenize(tokens, string(m.ToolCalls))
		}
	}
	return tokenize(tokens, "<|assistant|>"), nil
}

// renderContent tokenizes a message's content. A non-text part, such as an image, becomes two
// tokens of its hash.
func renderContent(tokens []token, content json.RawMessage) ([]token, error) {
	if !isPresent(content) {
		return tokens, nil
	}
	if content[0] == '"' {
		var text string
		err := decodeJSON(content, &text)
		return tokenize(tokens, text), err
	}
	var parts []json.RawMessage
	if decodeJSON(content, &parts) != nil {
		return nil, badRequest("content must be a string or a list of parts.")
	}
	for _, raw := range parts {
		var part openai.ChatMessagePart
		if decodeJSON(raw, &part) == nil && part.Type == openai.ChatMessagePartTypeText {
			tokens = tokenize(tokens, part.Text)
		} else {
			sum := xxhash.Sum64(raw)
			tokens = append(tokens, token(sum), token(sum>>32))
		}
	}
	return tokens, nil
}

// chosenTool returns the function forced by tool_choice: the named one, or the first for
// "required".
func chosenTool(tools, choice json.RawMessage) (string, error) {
	if !isPresent(choice) {
		return "", nil
	}
	var named openai.ToolChoice
	if choice[0] == '"' {
		if string(choice) != `"required"` {
			return "", nil
		}
	} else if decodeJSON(choice, &named) != nil || named.Function.Name == "" {
		return "", badRequest("tool_choice must be none, auto, required, or name a function.")
	}
	var offered []struct {
		Function openai.ToolFunction `json:"function"`
	}
	if isPresent(tools) {
		if err := decodeJSON(tools, &offered); err != nil {
			return "", err
		}
	}
	for _, tool := range offered {
		if name := tool.Function.Name; name != "" && (named.Function.Name == "" || named.Function.Name == name) {
			return name, nil
		}
	}
	return "", badRequest("tool_choice names a function that is not among the tools.")
}

// parsePrompts parses a string, a list of strings, a list of token IDs, or a list of such lists.
func parsePrompts(raw json.RawMessage) (prompts [][]token, err error) {
	const trim = " \t\r\n"
	inner := bytes.TrimLeft(bytes.TrimPrefix(raw, []byte("[")), trim)
	switch {
	case bytes.HasPrefix(raw, []byte(`"`)):
		var text string
		err = decodeJSON(raw, &text)
		prompts = [][]token{tokenize(nil, text)}
	case !bytes.HasPrefix(raw, []byte("[")):
	case bytes.HasPrefix(inner, []byte(`"`)):
		var texts []string
		err = decodeJSON(raw, &texts)
		for _, text := range texts {
			prompts = append(prompts, tokenize(nil, text))
		}
	case bytes.HasPrefix(inner, []byte("[")):
		err = decodeJSON(raw, &prompts)
	default:
		prompts = make([][]token, 1)
		err = decodeJSON(raw, &prompts[0])
	}
	if err != nil {
		return nil, err
	}
	if len(prompts) == 0 || len(prompts) > maxPrompts {
		return nil, badRequest("expected 1 to %d prompts: a string, a list of strings, of token IDs or of token ID lists.", maxPrompts)
	}
	for _, prompt := range prompts {
		if len(prompt) == 0 {
			return nil, badRequest("a prompt cannot be empty.")
		}
	}
	return prompts, nil
}

func decodeJSON(data []byte, into any) error {
	err := json.Unmarshal(data, into)
	if err == nil {
		return nil
	}
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return badRequest("a %s does not fit here: %s", wrong.Value, cmp.Or(wrong.Field, "the whole value"))
	}
	return badRequest("invalid JSON: %v", err)
}

// isPresent reports whether a value is neither absent nor null.
func isPresent(raw json.RawMessage) bool { return len(raw) > 0 && string(raw) != "null" }
