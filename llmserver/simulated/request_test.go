package simulated

import (
	"errors"
	"net/http"
	"reflect"
	"testing"
)

func TestSimulatedWordIsOneToken(t *testing.T) {
	seen := map[string]bool{}
	for _, w := range words {
		if len(w) != 4 || seen[w] {
			t.Errorf("%q is not a new word of four bytes", w)
		}
		seen[w] = true
	}
}

func TestSimulatedTextIsFourBytesPerToken(t *testing.T) {
	if got := tokenize(nil, "abcdefghi"); !reflect.DeepEqual(got, []token{0x64636261, 0x68676665, 0x69}) {
		t.Errorf("%#x", got)
	}
}

func TestSimulatedChainDependsOnAllEarlierBlocks(t *testing.T) {
	a, b := make([]token, 40), make([]token, 40)
	b[3] = 1
	chainA, chainB := hashChain(a), hashChain(b)
	if len(chainA) != 2 || chainA[0] == chainB[0] || chainA[1] == chainB[1] || chainA[0] == chainA[1] {
		t.Errorf("%x, %x", chainA, chainB)
	}
}

func TestSimulatedPromptsOfEveryFormAreParsed(t *testing.T) {
	for body, want := range map[string][][]token{
		`{"prompt":"abcd"}`:                   {{0x64636261}},
		`{"prompt":[ "abcd" , "a"]}`:          {{0x64636261}, {0x61}},
		`{"prompt":[1,2,3]}`:                  {{1, 2, 3}},
		`{"prompt": [ [1,2],[3] ], "n":null}`: {{1, 2}, {3}},
	} {
		if task, err := parseCompletion([]byte(body)); err != nil || !reflect.DeepEqual(task.prompts, want) {
			t.Errorf("%s: %v, %v", body, task, err)
		}
	}
}

func TestSimulatedLimitAndFinishReasonFollowTheRequest(t *testing.T) {
	for fields, want := range map[string]struct {
		limit  int
		finish string
	}{
		``:                {defaultMaxTokens, "stop"},
		`,"max_tokens":7`: {7, "length"},
		`,"max_tokens":null,"stop":"x","logprobs":null,"temperature":0.5,"metadata":{"a":[1]}`: {defaultMaxTokens, "stop"},
		`,"max_tokens":7,"max_completion_tokens":8`:                                            {8, "length"},
	} {
		task, err := parseChat([]byte(`{"messages":[{"role":"user","content":"x","name":null}]` + fields + `}`))
		if err != nil || task.maxTokens != want.limit || task.finishReason != want.finish {
			t.Errorf("%s: %+v, %v", fields, task, err)
		}
	}
}

func TestSimulatedNextTurnBeginsWithThisTurnAndItsResponse(t *testing.T) {
	first, err := parseChat([]byte(`{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Who is there, in one long sentence?"}],"max_tokens":40}`))
	if err != nil {
		t.Fatal(err)
	}
	response := newCompletion(first).choiceText(first.choiceSeed(0, 0))
	next, err := parseChat([]byte(`{"messages":[{"role":"system","content":[{"type":"text","text":"Be brief."}]},
		{"role":"user","content":"Who is there, in one long sentence?"},{"role":"assistant","content":"` + response + `"},{"role":"user","content":"Why?"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	before, after := first.sequences()[0].Chain, next.sequences()[0].Chain
	if len(before) < 3 || !reflect.DeepEqual(before, after[:len(before)]) {
		t.Errorf("chain %x is not the beginning of %x", before, after)
	}
}

func TestSimulatedNonTextPartsDifferByContent(t *testing.T) {
	prompt := func(part string) []token {
		task, err := parseChat([]byte(`{"messages":[{"role":"user","content":[` + part + `]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return task.prompts[0]
	}
	a, b := prompt(`{"type":"image_url","image_url":{"url":"a"}}`), prompt(`{"type":"image_url","image_url":{"url":"b"}}`)
	if reflect.DeepEqual(a, b) || len(a) != len(b) {
		t.Errorf("%v, %v", a, b)
	}
}

func TestSimulatedForcedToolIsFound(t *testing.T) {
	const tools = `"tools":[{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"b"}}]`
	for choice, want := range map[string]string{
		`"auto"`: "", `"none"`: "", `null`: "", `"required"`: "a",
		`{"type":"function","function":{"name":"b"}}`: "b",
	} {
		task, err := parseChat([]byte(`{"messages":[{"role":"user","content":"x"}],` + tools + `,"tool_choice":` + choice + `}`))
		if err != nil || task.tool != want {
			t.Errorf("%s: %+v, %v, want %q", choice, task, err, want)
		}
	}
}

func TestSimulatedInvalidRequestsAreRejected(t *testing.T) {
	chat := func(body []byte) error { _, err := parseChat(body); return err }
	completion := func(body []byte) error { _, err := parseCompletion(body); return err }
	embedding := func(body []byte) error { _, err := parseEmbedding(body); return err }
	for _, c := range []struct {
		parse func([]byte) error
		body  string
	}{
		{chat, ``}, {chat, `null`}, {chat, `[]`}, {chat, `{"messages":[]}`}, {chat, `{"messages":"x"}`}, {chat, `{"messages":[{"content":7}]}`},
		{chat, `{"messages":[{"content":"x"}],"max_tokens":0}`}, {chat, `{"messages":[{"content":"x"}],"n":0}`},
		{chat, `{"messages":[{"content":"x"}],"n":129}`}, {chat, `{"messages":[{"content":"x"}],"max_tokens":9e99}`},
		{chat, `{"messages":[{"content":"x"}],"tool_choice":"required"}`},
		{chat, `{"messages":[{"content":"x"}],"tool_choice":{"function":{"name":"x"}},"tools":[{"function":{"name":"y"}}]}`},
		{chat, `{"messages":[{"content":"x"}],"tool_choice":7,"tools":7}`},
		{chat, `{"messages":[{"content":"x"}]} x`}, {chat, `{"model":7,"messages":[{"content":"x"}]}`},
		{completion, `{}`}, {completion, `{"prompt":""}`}, {completion, `{"prompt":[]}`}, {completion, `{"prompt":[[]]}`}, {completion, `{"prompt":[-1]}`},
		{completion, `{"prompt":["x",1]}`}, {completion, `{"prompt":{"x":1}}`}, {completion, `{"prompt":null}`}, {completion, `{"prompt":"x","max_tokens":-1}`},
		{embedding, `{}`}, {embedding, `{"input":"x","dimensions":0}`}, {embedding, `{"input":"x","encoding_format":"int8"}`},
	} {
		p, ok := errors.AsType[*apiError](c.parse([]byte(c.body)))
		if !ok || p.status != http.StatusBadRequest {
			t.Errorf("%s: %v", c.body, p)
		}
	}
}

func FuzzSimulatedRequest(f *testing.F) {
	for _, body := range []string{
		`{"messages":[{"role":"user","content":[{"type":"text","text":"x"},7,null]}],"tools":[{}],"tool_choice":"required"}`,
		`{"prompt":[[1,2],[3]],"input":["x"],"n":2,"stream":true,"stream_options":{"include_usage":true}}`,
		`{"prompt":[ ], "input":"\ud800","dimensions":3,"encoding_format":"base64"}`,
		`{"messages":[{"role":"assistant","content":null,"tool_calls":[{}]}],"tool_choice":{"function":{"name":"x"}},"tools":[{"function":{"name":"x"}}]}`,
	} {
		f.Add([]byte(body))
	}
	check := func(t *testing.T, task *task, err error) {
		if err != nil {
			if _, ok := errors.AsType[*apiError](err); !ok {
				t.Fatalf("not a problem: %v", err)
			}
			return
		}
		if len(task.prompts) == 0 || task.choices < 1 || task.maxTokens < 0 {
			t.Fatalf("a task that cannot be done: %+v", task)
		}
		task.maxTokens = min(task.maxTokens, 20)
		for i, s := range task.sequences() {
			if s.Prompt < 1 || s.Prompt != len(task.prompts[i]) || len(s.Chain) > (s.Prompt+s.Limit)/blockTokens {
				t.Fatalf("sequence %+v of prompt %v", s, task.prompts[i])
			}
		}
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		task, err := parseChat(body)
		check(t, task, err)
		task, err = parseCompletion(body)
		check(t, task, err)
		if e, err := parseEmbedding(body); err != nil {
			check(t, nil, err)
		} else {
			check(t, e.task, nil)
		}
	})
}
