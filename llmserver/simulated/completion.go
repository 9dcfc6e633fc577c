package simulated

import (
	"encoding/json"
	"strconv"

	openai "github.com/sashabaranov/go-openai"
)

// created is the time of every response. A clock would make equal responses differ.
const created = 1700000000

// The arguments of a tool call are these texts around the words, a JSON object for any number of
// words.
const (
	toolArgsPrefix = `{"input":"`
	toolArgsSuffix = `"}`
)

const doneEvent = "data: [DONE]\n\n"

// A completion is the response to a task, which is known in advance. Streams are assembled from
// rendered pieces, because hundreds of them may grow by a chunk in every step.
type completion struct {
	task    *task
	id      string
	prefix  string // of each chunk, up to the choices
	choices []choice
}

// A choice is one element of a response's choices, as rendered pieces.
type choice struct {
	seed      uint64
	preambles []string // whole chunks before the first token
	before    string   // of a chunk, around the token
	after     string   // up to the finish reason
}

func newCompletion(t *task) *completion {
	s := &completion{task: t, id: "cmpl-" + t.id()}
	object := "text_completion"
	if t.chat {
		s.id, object = "chat"+s.id, "chat.completion.chunk"
	}
	s.prefix = `data: {"id":` + quote(s.id) + `,"object":` + quote(object) +
		`,"created":` + strconv.Itoa(created) + `,"model":` + quote(t.model) + `,"choices":[`
	for p := range t.prompts {
		for a := range t.choices {
			s.choices = append(s.choices, s.newChoice(len(s.choices), t.choiceSeed(p, a)))
		}
	}
	return s
}

func (s *completion) newChoice(index int, seed uint64) choice {
	const reason = `,"logprobs":null,"finish_reason":`
	const unfinished = reason + "null}]}\n\n"
	head := s.prefix + `{"index":` + strconv.Itoa(index) + `,`
	switch {
	case !s.task.chat:
		return choice{seed: seed, before: head + `"text":"`, after: `"` + reason}
	case s.task.tool == "":
		role := head + `"delta":{"role":"assistant","content":""}` + unfinished
		return choice{seed, []string{role}, head + `"delta":{"content":"`, `"}` + reason}
	default:
		const call = `"delta":{"tool_calls":[{"index":0,`
		role := head + `"delta":{"role":"assistant","content":null}` + unfinished
		name := head + call + `"id":` + quote(callID(seed)) + `,"type":"function","function":{"name":` +
			quote(s.task.tool) + `,"arguments":""}}]}` + unfinished
		return choice{seed, []string{role, name}, head + call + `"function":{"arguments":"`, `"}}]}` + reason}
	}
}

// appendChunk appends the event with the k-th token of a choice. The last one carries the finish
// reason.
func (s *completion) appendChunk(event []byte, c *choice, k int) []byte {
	event = append(event, c.before...)
	if s.task.tool != "" && k == 0 {
		event = append(event, escape(toolArgsPrefix)...)
	}
	event = append(event, word(c.seed, k)...)
	if k < s.task.maxTokens-1 {
		return append(append(event, c.after...), "null}]}\n\n"...)
	}
	if s.task.tool != "" {
		event = append(event, escape(toolArgsSuffix)...)
	}
	return append(append(append(event, c.after...), quote(s.task.finishReason)...), `,"stop_reason":null}]}`+"\n\n"...)
}

// usageEvent returns the event requested by stream_options.include_usage.
func (s *completion) usageEvent(usage openai.Usage) []byte {
	return append(append(append([]byte(s.prefix), `],"usage":`...), mustEncode(usage)...), "}\n\n"...)
}

// eventCount returns the number of events of the whole stream.
func (s *completion) eventCount() int {
	n := 1
	if s.task.includeUsage {
		n++
	}
	for _, c := range s.choices {
		n += len(c.preambles) + s.task.maxTokens
	}
	return n
}

// render returns the unstreamed response.
func (s *completion) render(usage openai.Usage) []byte {
	type message struct {
		Role      string            `json:"role"`
		Content   *string           `json:"content"`
		ToolCalls []openai.ToolCall `json:"tool_calls,omitempty"`
	}
	type body struct {
		Index        int      `json:"index"`
		Message      *message `json:"message,omitempty"`
		Text         *string  `json:"text,omitempty"`
		Logprobs     any      `json:"logprobs"`
		FinishReason string   `json:"finish_reason"`
		StopReason   any      `json:"stop_reason"`
	}
	bodies := make([]body, len(s.choices))
	for i, c := range s.choices {
		b := body{Index: i, FinishReason: s.task.finishReason}
		text := s.choiceText(c.seed)
		switch {
		case !s.task.chat:
			b.Text = &text
		case s.task.tool == "":
			b.Message = &message{Role: openai.ChatMessageRoleAssistant, Content: &text}
		default:
			call := openai.FunctionCall{Name: s.task.tool, Arguments: toolArgsPrefix + text + toolArgsSuffix}
			b.Message = &message{Role: openai.ChatMessageRoleAssistant, ToolCalls: []openai.ToolCall{
				{ID: callID(c.seed), Type: openai.ToolTypeFunction, Function: call},
			}}
		}
		bodies[i] = b
	}
	object := "text_completion"
	if s.task.chat {
		object = "chat.completion"
	}
	return mustEncode(struct {
		ID      string       `json:"id"`
		Object  string       `json:"object"`
		Created int64        `json:"created"`
		Model   string       `json:"model"`
		Choices []body       `json:"choices"`
		Usage   openai.Usage `json:"usage"`
	}{s.id, object, created, s.task.model, bodies, usage})
}

func (s *completion) choiceText(seed uint64) string {
	text := make([]byte, 0, 4*s.task.maxTokens)
	for k := range s.task.maxTokens {
		text = append(text, word(seed, k)...)
	}
	return string(text)
}

func callID(seed uint64) string { return "call-" + strconv.FormatUint(seed, 16) }

func quote(text string) string { return string(mustEncode(text)) }

// escape returns text as the inside of a JSON string.
func escape(text string) string {
	quoted := quote(text)
	return quoted[1 : len(quoted)-1]
}

// mustEncode returns value as JSON. The encoding of the types of this package cannot fail.
func mustEncode(value any) []byte {
	data, err := json.Marshal(value)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return data
}
