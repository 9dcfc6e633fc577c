package streaming

import (
	"strings"
	"testing"
)

func TestUsageOfEachAPI(t *testing.T) {
	for name, test := range map[string]struct {
		stream string
		want   Usage
	}{
		"messages, the end with the output alone": {
			`{"type":"message_start","message":{"id":"1","content":[],"usage":{"input_tokens":25,"cache_creation_input_tokens":5,` +
				`"cache_read_input_tokens":10,"output_tokens":1}}}` + "\n" + `{"type":"message_delta","delta":{},"usage":{"output_tokens":15}}`,
			Usage{PromptTokens: 40, CompletionTokens: 15, CachedTokens: 10}},
		"messages, the end with zeros": {
			`{"message":{"usage":{"input_tokens":25,"output_tokens":0}}}` + "\n" + `{"usage":{"input_tokens":0,"output_tokens":15}}`,
			Usage{PromptTokens: 25, CompletionTokens: 15}},
		"messages, by lifetime of the cache": {
			`{"usage":{"input_tokens":3,"cache_creation":{"ephemeral_5m_input_tokens":9},"cache_read_input_tokens":4,"output_tokens":2,"service_tier":"standard"}}`,
			Usage{PromptTokens: 7, CompletionTokens: 2, CachedTokens: 4}},
		"chat, and messages beside it": {
			`{"usage":{"prompt_tokens":40,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":30},"cache_read_input_tokens":30}}`,
			Usage{PromptTokens: 40, CompletionTokens: 2, CachedTokens: 30}},
		"chat, details of nothing":       {`{"usage":{"prompt_tokens":4,"completion_tokens":2,"prompt_tokens_details":null}}`, Usage{PromptTokens: 4, CompletionTokens: 2}},
		"chat, with usage in each chunk": {`{"usage":{"prompt_tokens":4,"completion_tokens":1}}` + "\n" + `{"usage":{"prompt_tokens":4,"completion_tokens":2}}`, Usage{PromptTokens: 4, CompletionTokens: 2}},
		"embeddings":                     {`{"data":[],"usage":{"prompt_tokens":4,"total_tokens":4}}`, Usage{PromptTokens: 4}},
		"rerank":                         {`{"results":[],"usage":{"total_tokens":56}}`, Usage{PromptTokens: 56}},
		"transcription, by time":         {`{"text":"a","usage":{"type":"duration","seconds":9}}`, Usage{}},
		"transcription, by tokens":       {`{"usage":{"type":"tokens","input_tokens":9,"input_token_details":{"text_tokens":1},"output_tokens":3}}`, Usage{PromptTokens: 9, CompletionTokens: 3}},
		"odd white space":                {"{\"usage\" \t:\r\n {\n\"prompt_tokens\" : 7 , \"completion_tokens\":\t8}}", Usage{PromptTokens: 7, CompletionTokens: 8}},
		"other values of that key":       {`{"usage":"prompt_tokens","x":{"prompt_tokens":9}}`, Usage{}},
		"quotes and braces in a text":    {`{"usage":{"note":"a \" } \"prompt_tokens\":5","prompt_tokens":6}}`, Usage{PromptTokens: 6}},
		"behind its end":                 {`{"usage":{"prompt_tokens":6},"completion_tokens":9}`, Usage{PromptTokens: 6}},
		"invalid numbers":                {`{"usage":{"prompt_tokens":-7,"completion_tokens":"9","cached_tokens":null}}`, Usage{}},
		"numbers out of range":           {`{"usage":{"prompt_tokens":99999999999999999999999999}}`, Usage{PromptTokens: maxTokens}},
		"cut off":                        {`{"usage":{"prompt_tokens":6,"completion_tok`, Usage{PromptTokens: 6}},
		"cut off within a text":          {`{"usage":{"prompt_tokens":6,"a\`, Usage{PromptTokens: 6}},
	} {
		var n usageCounts
		for line := range strings.Lines(test.stream) {
			n.scan([]byte(line))
		}
		if name == "odd white space" {
			n.scan([]byte(test.stream))
		}
		if got := n.usage(); got != test.want {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func FuzzUsageIsInRange(f *testing.F) {
	f.Add(`{"usage":{"prompt_tokens":1e300,"prompt_tokens_details":{"cached_tokens":7}}}`)
	f.Add(`"usage":{"\"_tokens"`)
	f.Fuzz(func(t *testing.T, text string) {
		var n usageCounts
		n.scan([]byte(text))
		if u := n.usage(); min(u.PromptTokens, u.CompletionTokens, u.CachedTokens) < 0 || u.PromptTokens > 3*maxTokens {
			t.Errorf("%q gives %+v", text, u)
		}
	})
}
