package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// found holds fields with their spans resolved, for comparison.
type found struct {
	model, modelRaw, messages, prompt, input, previous, cacheKey, user string
	stream                                                             bool
}

func resolveSpans(f Fields, body []byte) found {
	raw := func(s Span) string { return string(s.Of(body)) }
	return found{
		string(f.Model), raw(f.ModelAt), raw(f.Messages), raw(f.Prompt), raw(f.Input),
		raw(f.PreviousResponseID), raw(f.PromptCacheKey), raw(f.User), f.Stream,
	}
}

func TestScanFindsFieldsAtTheTopLevelOnly(t *testing.T) {
	for _, c := range []struct {
		body string
		want found
	}{
		{`{}`, found{}},
		{`{"model":"m"}`, found{model: "m", modelRaw: `"m"`}},
		{" {\r\n\t\"model\" : \"m\" } \n", found{model: "m", modelRaw: `"m"`}},
		{`{"model":null}`, found{modelRaw: "null"}},
		{`{"model":""}`, found{modelRaw: `""`}},
		{`{"model":"Qwen\/\u0051 \ud83d\ude00"}`, found{model: "Qwen/Q 😀", modelRaw: `"Qwen\/\u0051 \ud83d\ude00"`}},
		{`{"mod\u0065l":"m","\u0073tream":true}`, found{model: "m", modelRaw: `"m"`, stream: true}},
		{`{"prompt_cache_ke\u0079":"k","prompt_cache_ke\u0079s":"no"}`, found{cacheKey: `"k"`}},
		{`{"previou\u0073_response_id":"r","previous_response_idx":"no"}`, found{previous: `"r"`}},
		{`{"mod\u1065l":"m","mod\nl":"m","Model":"m"}`, found{}},
		{`{"x":{"model":"a"},"y":["model","b"],"z":"\"model\":\"c\"","model":"m"}`, found{model: "m", modelRaw: `"m"`}},
		{`{"stream":true,"stream":false}`, found{}},
		{`{"stream":"true"}`, found{}},
		{`{"messages":[{"role":"user"}],"prompt":[1,2],"input":"i","prompt_cache_key":"k","user":7}`,
			found{messages: `[{"role":"user"}]`, prompt: "[1,2]", input: `"i"`, cacheKey: `"k"`, user: "7"}},
		{`{"prompt":"a","prompt":"b","input":"c","input":null}`, found{prompt: `"b"`}},
	} {
		f, err := scanJSON([]byte(c.body), nil)
		if err != nil {
			t.Errorf("%s: %v", c.body, err)
		} else if got := resolveSpans(f, []byte(c.body)); got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.body, got, c.want)
		}
	}
}

func TestScanDistinguishesNullEmptyAndAbsentModels(t *testing.T) {
	for body, want := range map[string]struct{ isNil, absent bool }{
		`{}`:             {true, true},
		`{"model":null}`: {true, false},
		`{"model":""}`:   {false, false},
	} {
		f, err := scanJSON([]byte(body), nil)
		if err != nil || (f.Model == nil) != want.isNil || f.ModelAt.Absent() != want.absent {
			t.Errorf("%s: model %q at %v, %v", body, f.Model, f.ModelAt, err)
		}
	}
}

func TestScanErrorIsOneSentence(t *testing.T) {
	deep := strings.Repeat("[", maxDepth)
	for body, want := range map[string]string{
		"":                                "The request body is empty; send a JSON object.",
		" \n\t":                           "The request body is empty; send a JSON object.",
		`[1]`:                             "The request body must be a JSON object.",
		`"text"`:                          "The request body must be a JSON object.",
		`null`:                            "The request body must be a JSON object.",
		`{"model":"a","model":"a"}`:       "The request body has more than one 'model'; send only one.",
		`{"model":null,"mod\u0065l":"a"}`: "The request body has more than one 'model'; send only one.",
		`{"model":7,"x":1}`:               "The 'model' in the request body must be a string.",
		`{"model":{"model":"a"}}`:         "The 'model' in the request body must be a string.",
		`{"x":` + deep + `1`:              "The request body is nested deeper than 1024 levels; reduce the nesting.",
		`{"model":7,"model":8}}`:          "The request body is not valid JSON: unexpected character '}' after the JSON value at byte 21; correct the body.",
		`hello`:                           "The request body is not valid JSON: unexpected character 'h' at byte 0; correct the body.",
		"\xef\xbb\xbf{}":                  "The request body is not valid JSON: unexpected character '\\ufeff' at byte 0; correct the body.",
		`{"a":1`:                          "The request body is not valid JSON: unexpected end at byte 6; correct the body.",
		`{"a":"b`:                         "The request body is not valid JSON: unexpected end at byte 7; correct the body.",
		`{"a":"\u12`:                      "The request body is not valid JSON: unexpected end at byte 10; correct the body.",
		`{"a":1} {}`:                      "The request body is not valid JSON: unexpected character '{' after the JSON value at byte 8; correct the body.",
		`[1] x`:                           "The request body is not valid JSON: unexpected character 'x' after the JSON value at byte 4; correct the body.",
		`{"a":1,}`:                        "The request body is not valid JSON: unexpected character '}' before a member name at byte 7; correct the body.",
		`{"a" 1}`:                         "The request body is not valid JSON: unexpected character '1' after a member name at byte 5; correct the body.",
		`{"a":[1,]}`:                      "The request body is not valid JSON: unexpected character ']' at byte 8; correct the body.",
		`{"a":[1}`:                        "The request body is not valid JSON: unexpected character '}' at byte 7; correct the body.",
		`{"a":01}`:                        "The request body is not valid JSON: unexpected character '1' at byte 6; correct the body.",
		`{"a":1.}`:                        "The request body is not valid JSON: unexpected character '}' in a number at byte 7; correct the body.",
		`{"a":1e+}`:                       "The request body is not valid JSON: unexpected character '}' in a number at byte 8; correct the body.",
		`{"a":-}`:                         "The request body is not valid JSON: unexpected character '}' at byte 6; correct the body.",
		`{"a":tru}`:                       "The request body is not valid JSON: unexpected character '}' at byte 8; correct the body.",
		`{"a":"\x"}`:                      "The request body is not valid JSON: unexpected character 'x' in an escape sequence at byte 7; correct the body.",
		`{"a":"\u00g0"}`:                  "The request body is not valid JSON: unexpected character 'g' in an escape sequence at byte 10; correct the body.",
		"{\"a\":\"\n\"}":                  "The request body is not valid JSON: unexpected character '\\n' in a string at byte 6; correct the body.",
		"{\xff}":                          "The request body is not valid JSON: unexpected byte 0xff before a member name at byte 1; correct the body.",
	} {
		if _, err := scanJSON([]byte(body), nil); err == nil || err.Error() != want {
			t.Errorf("%.40q:\n got %v\nwant %v", body, err, want)
		}
	}
}

func TestScanAcceptsTheDeepestNesting(t *testing.T) {
	n := maxDepth - 1 // beside the body's own object
	body := `{"x":` + strings.Repeat("[", n) + "1" + strings.Repeat("]", n) + `,"model":"m"}`
	if f, err := scanJSON([]byte(body), nil); err != nil || string(f.Model) != "m" {
		t.Fatalf("model %q, %v", f.Model, err)
	}
}

// A byte that ends or breaks a string must be found at every offset in the words that are read at
// once.
func TestIndexSpecialFindsTheEndOfAStringAtEveryOffset(t *testing.T) {
	for offset := range 40 {
		for c := range 256 {
			src := []byte(strings.Repeat("\x80", offset) + string([]byte{byte(c)}) + strings.Repeat("!", 19))
			want := offset
			if c >= 0x20 && c != '"' && c != '\\' {
				want = len(src)
			}
			if got := indexSpecial(src, 0); got != want {
				t.Fatalf("byte 0x%02x at %d: found at %d", c, offset, got)
			}
		}
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	body := []byte(`{"mod\u0065l":"m","messages":[{"content":"` + strings.Repeat(`x\n`, 100) + `"}],"n":-1.5e3,"stream":true}`)
	if n := testing.AllocsPerRun(100, func() { _, _ = scanJSON(body, nil) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func FuzzScanAgreesWithEncodingJSON(f *testing.F) {
	for _, seed := range []string{
		``, `{}`, `[{"a":[]},{},[]]`, `{"model":"m\u00e9","stream":true,"messages":[{"role":"user","content":"a\"b"}]}`,
		`{"mod\u0065l":null,"user":"u"}`, `{"model":1,"model":2}`, `{"prompt":[1,-0,0.5,1e9,2E-3],"input":false}`,
		"{\"user\":\"\xff\xed\xa0\x80\"}", `{"a":"\ud800"}`, `{"a":1}}`, `[01]`, `{"previous_response_id":"r"}`, `{"messages" : null , "prompt_cache_key":"k"}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		f, err := scanJSON(body, nil)
		if err == ErrTooDeep {
			if bytes.Count(body, []byte("["))+bytes.Count(body, []byte("{")) <= maxDepth {
				t.Fatal("too few brackets to be too deep")
			}
			return
		}
		syntax, broken := errors.AsType[*SyntaxError](err)
		if broken && (syntax.Offset < 0 || syntax.Offset > int64(len(body))) {
			t.Fatalf("offset %d of %d", syntax.Offset, len(body))
		}
		if valid := json.Valid(body); valid == (broken || err == ErrEmptyBody) {
			t.Fatalf("valid=%t for encoding/json, but the scan returned %v", valid, err)
		} else if !valid {
			return
		}
		if object := bytes.TrimSpace(body)[0] == '{'; object == (err == ErrNotObject) {
			t.Fatal(err)
		} else if object {
			compareWithEncodingJSON(t, body, f, err)
		}
	})
}

// compareWithEncodingJSON compares the fields of a valid object with those that encoding/json
// finds.
func compareWithEncodingJSON(t *testing.T, body []byte, f Fields, err error) {
	models := countModels(t, body)
	if (models > 1) != (err == ErrDuplicateModel) && err != ErrModelNotString {
		t.Fatalf("%d models: %v", models, err)
	}
	if models > 1 {
		return
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(body, &members); err != nil {
		t.Fatal(err)
	}
	var model *string
	notString := json.Unmarshal(members["model"], &model) != nil && members["model"] != nil
	if notString != (err == ErrModelNotString) {
		t.Fatalf("model %s: %v", members["model"], err)
	} else if notString {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if (model == nil) != (f.Model == nil) || model != nil && utf8.Valid(f.Model) && *model != string(f.Model) {
		t.Fatalf("model %q, want %s", f.Model, members["model"])
	}
	want := found{model: string(f.Model), modelRaw: string(members["model"]), stream: string(members["stream"]) == "true"}
	for name, at := range map[string]*string{
		"messages": &want.messages, "prompt": &want.prompt, "input": &want.input,
		"previous_response_id": &want.previous, "prompt_cache_key": &want.cacheKey, "user": &want.user,
	} {
		if *at = string(members[name]); *at == "null" {
			*at = ""
		}
	}
	if got := resolveSpans(f, body); got != want {
		t.Fatalf("\n got %+v\nwant %+v", got, want)
	}
}

// countModels counts the members named model at the top level of an object.
func countModels(t *testing.T, body []byte) (n int) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	if _, err := decoder.Token(); err != nil {
		t.Fatal(err)
	}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			t.Fatal(err)
		}
		if name == "model" {
			n++
		}
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func BenchmarkScan(b *testing.B) {
	const size = 256 << 10
	chat := func(content string) string {
		return `{"model":"qwen3-4b","messages":[{"role":"user","content":"` + content + `"}],"stream":true}`
	}
	messages := strings.Repeat(`{"role":"user","content":"What is the weather today?"},`, size/55)
	var tokens strings.Builder
	for i := 0; tokens.Len() < size; i++ {
		fmt.Fprintf(&tokens, "%d,", i*7919%151936)
	}
	for _, c := range []struct{ name, body string }{
		{"Plain", chat(strings.Repeat("a long prompt. ", size/15))},
		{"EscapeEvery64Bytes", chat(strings.Repeat(strings.Repeat("x", 62)+`\n`, size/64))},
		{"SmallMessages", `{"model":"qwen3-4b","messages":[` + messages[:len(messages)-1] + `]}`},
		{"TokenIDs", `{"model":"qwen3-4b","prompt":[` + tokens.String() + `0]}`},
	} {
		b.Run(c.name, func(b *testing.B) {
			body := []byte(c.body)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			start := cpuTime(b)
			for b.Loop() {
				if _, err := scanJSON(body, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(len(body)*b.N)/float64((cpuTime(b)-start).Microseconds()), "cpu-MB/s")
		})
	}
}
