package openai

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

// hashPromptOf returns the blocks of the prompt of a body, hashed during the scan.
func hashPromptOf(t testing.TB, body []byte, model, adapter string, size int) (blocks []uint64, bytes int) {
	h := NewPromptHasher(size)
	defer h.Release()
	f, err := scanJSON(body, h)
	if err != nil {
		t.Helper()
		t.Fatalf("%v in %s", err, body)
	}
	return h.Blocks(f, body, model, adapter, size)
}

func blocksOf(t testing.TB, body, model string, size int) []uint64 {
	t.Helper()
	blocks, _ := hashPromptOf(t, []byte(body), model, "", size)
	return blocks
}

const paddedToBlock = "<padded to a whole block>"

// chainOf hashes a canonical text step by step: the part before paddedToBlock, and the part after
// it.
func chainOf(text, model string, size int, seeds ...string) (blocks []uint64) {
	chain := xxhash.Sum64String(model)
	for _, s := range seeds {
		chain = chainHash(chain, xxhash.Sum64String(s))
	}
	before, text, sections := strings.Cut(text, paddedToBlock)
	if !sections {
		before, text = "", before
	}
	for _, part := range []string{before + strings.Repeat("\x00", (size-len(before)%size)%size), text} {
		start, section := chain, uint64(0)
		for ; len(part) >= size; part = part[size:] {
			section = chainHash(section, xxhash.Sum64String(part[:size]))
			chain = chainHash(start, section)
			blocks = append(blocks, chain)
		}
	}
	return blocks
}

func nonTextOf(raw string) string { return nonTextHash(xxhash.Sum64String(raw)) }

func nonTextHash(hash uint64) string {
	return "\x03" + string(binary.LittleEndian.AppendUint64(nil, hash))
}

// membersText returns the text for further members of a message, given by names and values.
func membersText(members ...string) string {
	hash := uint64(0)
	for _, m := range members {
		hash = chainHash(hash, xxhash.Sum64String(m))
	}
	return nonTextHash(hash)
}

func TestPromptHasherHashesTheCanonicalText(t *testing.T) {
	for _, c := range []struct{ name, body, text string }{
		{"a chat", `{"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"Hi"}]}`,
			"\x02Be brief.\x01\"system\"\x02Hi\x01\"user\""},
		{"content before the role", `{"messages":[{"content":"Hi","role":"user"}]}`, "\x02Hi\x01\"user\""},
		{"no role", `{"messages":[{"content":"Hi"}]}`, "\x02Hi\x01"},
		{"white space and escapes", "{ \"messages\" : [ { \"role\" : \"user\" , \"content\" : \"a\\n\\u0062\\\"\\ud83d\\ude00\" } ] }", "\x02a\nb\"😀\x01\"user\""},
		{"half a pair", `{"messages":[{"role":"user","content":"\ud83dx"}]}`, "\x02\uFFFDx\x01\"user\""},
		{"parts", `{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"data:x"}},{"text":"b","type":"text"}]}]}`,
			"\x02a" + nonTextOf(`{"type":"image_url","image_url":{"url":"data:x"}}`) + "b\x01\"user\""},
		{"null content and a call", `{"messages":[{"role":"assistant","content":null,"tool_calls":[{"id":"1"}]}]}`,
			"\x02" + nonTextOf("null") + "\x01\"assistant\"" + membersText("tool_calls", `[{"id":"1"}]`)},
		{"a prompt", `{"prompt":"Once upon"}`, "Once upon"},
		{"prompts", `{"prompt":["a","b"]}`, "\x04a\x04b"},
		{"token ids", `{"prompt":[1, 23 ,4]}`, "1,23,4,"},
		{"lists of token ids", `{"prompt":[[1,2],[3]]}`, "\x041,2,\x043,"},
		{"input", `{"input":"text"}`, "text"},
		{"items of input", `{"input":[{"role":"user","content":[{"type":"input_text","text":"Hi"}]}]}`, "\x02Hi\x01\"user\""},
		{"Anthropic's system", `{"messages":[{"role":"user","content":"Hi"}],"system":"Be brief."}`, "\x02Be brief." + paddedToBlock + "\x02Hi\x01\"user\""},
		{"the same in parts", `{"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]}`,
			"\x02Be brief." + paddedToBlock + "\x02Hi\x01\"user\""},
		{"instructions", `{"instructions":"Be brief.","input":"Hi"}`, "\x02Be brief." + paddedToBlock + "Hi"},
		{"null instructions", `{"instructions":null,"input":"Hi"}`, "Hi"},
		{"items of a response", `{"input":[{"type":"message","role":"user","content":"Hi"},{"type":"function_call_output","call_id":"c","output":"7"}]}`,
			"\x02Hi\x01\"user\"" + membersText("type", `"message"`) + "\x01" + membersText("type", `"function_call_output"`, "call_id", `"c"`, "output", `"7"`)},
		{"a query to rank by", `{"query":"Who?","documents":["a","b"]}`, "Who?"},
		{"texts to score", `{"text_1":["a","b"],"text_2":["c"]}`, "\x04a\x04b"},
		{"SGLang's own", `{"text":"Once upon","sampling_params":{}}`, "Once upon"},
		{"nothing", `{"model":"m"}`, ""},
		{"messages of the wrong kind", `{"messages":"Hi"}`, nonTextOf(`"Hi"`)},
		{"a message of the wrong kind", `{"messages":[7]}`, nonTextOf("7")},
		{"empty lists", `{"messages":[ ],"prompt":"not this"}`, ""},
		{"empty objects", `{"messages":[{},{ }]}`, "\x01\x01"},
	} {
		for _, size := range []int{1, 3, 8} {
			if got, want := blocksOf(t, c.body, "m", size), chainOf(c.text, "m", size); !slices.Equal(got, want) {
				t.Errorf("%s: %d blocks of %d bytes, want %d, or others than those of %q", c.name, len(got), size, len(want), c.text)
			}
		}
	}
}

func TestPromptHasherSeparatesPromptsThatEnginesDoNotShare(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"the same text"}]`
	seen := make(map[uint64]string)
	for _, c := range []struct{ model, body string }{
		{"m", `{` + messages + `}`},
		{"n", `{` + messages + `}`},
		{"m", `{"cache_salt":"s",` + messages + `}`},
		{"m", `{` + messages + `,"tools":[{"type":"function"}]}`},
		{"m", `{"cache_salt":"s",` + messages + `,"tools":[{"type":"function"}]}`},
	} {
		first := blocksOf(t, c.body, c.model, 8)[0]
		if other, ok := seen[first]; ok {
			t.Errorf("%s has the hash of %s", c.body, other)
		}
		seen[first] = c.body
	}
	plain := []byte(`{` + messages + `}`)
	for _, adapter := range []string{"s", "t", `"s"`} {
		blocks, _ := hashPromptOf(t, plain, "m", adapter, 8)
		first := blocks[0]
		if other, ok := seen[first]; ok {
			t.Errorf("with the adapter %s it has the hash of %s", adapter, other)
		}
		seen[first] = adapter
	}
}

func TestPromptHasherKeepsTheBlocksOfAConversationThatContinues(t *testing.T) {
	turn := `{"role":"user","content":"` + strings.Repeat("words and words ", 20) + `"}`
	short := blocksOf(t, `{"messages":[`+turn+`]}`, "m", 64)
	long := blocksOf(t, `{"messages":[`+turn+`,{"role":"assistant","content":"yes"},`+turn+`]}`, "m", 64)
	if len(short) < 4 || len(long) <= len(short) || !slices.Equal(short, long[:len(short)]) {
		t.Errorf("%d blocks are no prefix of %d", len(short), len(long))
	}
}

func TestPromptHasherIgnoresHowThePromptIsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type message struct {
			Role    string `json:"role"`
			Content string `json:"content"`
		}
		messages := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) message {
			return message{rapid.SampledFrom([]string{"user", "assistant"}).Draw(t, "role"), rapid.String().Draw(t, "content")}
		}), 1, 5).Draw(t, "messages")
		plain, err := json.Marshal(map[string]any{"messages": messages})
		if err != nil {
			t.Fatal(err)
		}
		var spaced bytes.Buffer
		json.Indent(&spaced, plain, " ", "\t")
		var text strings.Builder
		for _, m := range messages {
			fmt.Fprintf(&text, "\x02%s\x01%q", strings.ToValidUTF8(m.Content, "\uFFFD"), m.Role)
		}
		size := rapid.IntRange(1, 40).Draw(t, "size")
		want := chainOf(text.String(), "m", size)
		for _, body := range []string{string(plain), spaced.String(), escaped(string(plain))} {
			h := NewPromptHasher(size)
			f, err := scanJSON([]byte(body), h)
			if err != nil {
				t.Fatal(err)
			}
			if got, bytes := h.Blocks(f, []byte(body), "m", "", size); !slices.Equal(got, want) || bytes != text.Len() {
				t.Fatalf("%s: %d blocks of %d bytes, want %d of %q", body, len(got), bytes, len(want), text.String())
			}
		}
	})
}

// escaped writes every character beyond ASCII as \uXXXX.
func escaped(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r < 0x80:
			b.WriteRune(r)
		case r < 0x10000:
			fmt.Fprintf(&b, "\\u%04X", r)
		default:
			r -= 0x10000
			fmt.Fprintf(&b, "\\u%04x\\u%04x", 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
	}
	return b.String()
}

func TestPromptHasherIgnoresTheOrderOfMembers(t *testing.T) {
	members := []string{`"model":"m"`, `"messages":[{"content":"a long question","role":"user"}]`, `"system":"Be brief."`, `"prompt":"not this"`, `"messages":null`}
	want := blocksOf(t, `{`+strings.Join(members[:3], ",")+`}`, "m", 4)
	without := blocksOf(t, `{"system":"Be brief.","prompt":"not this"}`, "m", 4)
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.Permutation(members).Draw(t, "order")
		expected := want
		if slices.Index(order, members[4]) > slices.Index(order, members[1]) { // of a repeated name the last value counts
			expected = without
		}
		body := []byte(`{` + strings.Join(order, ",") + `}`)
		first := rapid.SampledFrom([]int{4, 5}).Draw(t, "first") // the size is known for sure only in the end
		h := NewPromptHasher(first)
		defer h.Release()
		f, err := scanJSON(body, h)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := h.Blocks(f, body, "m", "", 4); !slices.Equal(got, expected) {
			t.Fatalf("%s: %x, want %x", body, got, expected)
		}
	})
}

// FuzzPromptHasher compares hashes made during the scan with hashes made afterwards, and the fields
// and errors of a scan that hashes with those of one that does not.
func FuzzPromptHasher(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"role":"user","content":"a\\\"b"}],"tools":[]}`, `{"prompt":[[1,-2.5e3],["x",{}],[]]}`,
		`{"input":{"a":[{}]}}`, `{"messages":[{"content":[{"text":1},{"text":"t"},[],null]}],"cache_salt":"s"}`, `{"prompt":"\ud800\u0041"}`,
		`{"system":"s","prompt":"p"}`, `{"system":"s","prompt":"p","system":null}`, `{"prompt":"p","input":"i","prompt":null}`,
		`{"system":"x\ud83d\ude00","prompt":"\ud83d\ud83x"}`, `{"input":"\/\b\q"}`, "{\"messages\":[{\"content\":\"\x01\"}]}", `{"prompt":"x`, `{"prompt":"\ud83d\udcg0"}`,
	} {
		f.Add([]byte(seed), 7)
	}
	f.Fuzz(func(t *testing.T, body []byte, size int) {
		size = max(1, min(size, 1<<16))
		plain, wanted := scanJSON(body, nil)
		h := NewPromptHasher(size)
		defer h.Release()
		f, err := scanJSON(body, h)
		if (err == nil) != (wanted == nil) || err != nil && err.Error() != wanted.Error() {
			t.Fatalf("%v, without hashes %v", err, wanted)
		} else if err != nil {
			return
		}
		blocks, n := h.Blocks(f, body, "m", "", size)
		again, m := NewPromptHasher(size).Blocks(plain, body, "m", "", size)
		if !slices.Equal(blocks, again) || n != m {
			t.Fatalf("%d blocks of %d bytes, afterwards %d of %d", len(blocks), n, len(again), m)
		}
		if most := 2 * (len(body) + 20*bytes.Count(body, []byte{'{'}) + 20*bytes.Count(body, []byte{','}) + 20); (len(blocks)-1)*size > 20*most {
			t.Fatalf("%d blocks of %d bytes from %d bytes", len(blocks), size, len(body))
		}
	})
}

func BenchmarkPromptHasher(b *testing.B) {
	const blockBytes = 128 // the default of the prefix-cache policy
	plain := strings.Repeat("All work and no play makes a dull prompt. ", 6500)
	for name, content := range map[string]string{
		"plain":    plain[:256<<10],
		"escapes":  strings.Repeat(plain[:62]+`\n`, 4<<10),
		"messages": strings.Repeat(`short text"},{"role":"user","content":"`, 6700),
	} {
		body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + content + `"}]}`)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			start := cpuTime(b)
			for b.Loop() {
				hashPromptOf(b, body, "m", "", blockBytes)
			}
			b.ReportMetric(float64(len(body)*b.N)/float64((cpuTime(b)-start).Microseconds()), "cpu-MB/s") // meaningful on a shared machine too
		})
	}
}
