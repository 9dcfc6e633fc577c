package replay

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestReadFormats(t *testing.T) {
	text := strings.Repeat("x", 300)
	tokens := strings.TrimSuffix(strings.Repeat("7,", 20), ",")
	for name, c := range map[string]struct {
		text string
		want string
	}{
		"Mooncake": {
			`{"timestamp": 1000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 9]}
			{"timestamp": 4000, "input_length": 600, "output_length": 6, "hash_ids": [0, 14]}`,
			"512: 0s 1100+5 <-1 2 blocks; 3s 600+6 <-1 1 blocks; ",
		},
		"WEKA": {
			`{"id":"s","block_size":64,"requests":[
				{"t":0,"in":100,"out":1,"api_time":2,"hash_runs":[[1,1]]},
				{"t":3,"type":"subagent","requests":[{"t":0.5,"in":70,"out":2,"api_time":1,"hash_runs":[[50,1]]},{"t":2,"in":130,"out":3,"api_time":1,"hash_runs":[[50,2]]}]},
				{"t":10,"in":200,"out":4,"api_time":2,"hash_runs":[[1,1],[7,2]]}]}`,
			"64: 0s 100+1 <-1 1 blocks; 3.5s 70+2 <0 gap 1.5s 1 blocks; 5s 130+3 <1 gap 500ms 2 blocks; 10s 200+4 <0 gap 8s 3 blocks; ",
		},
		"LMCache": {
			`{"timestamp":5000000,"input":"` + text + `","output":"12345","session_id":"a"}
			{"timestamp":6000000,"input":"y","output":"","session_id":"b"}
			{"timestamp":6500000,"input":"` + text + text + `","output":"","session_id":"a"}`,
			"64: 0s 75+2 <-1 1 blocks; 1s 1+0 <-1 0 blocks; 1.5s 150+0 <0 2 blocks; ",
		},
		"token ids": {
			`{"input_toks": 20, "output_toks": 3, "arrival_time_ns": 5, "input_tok_ids": [` + tokens + `], "output_tok_ids": [1]}`,
			"16: 0s 20+3 <-1 1 blocks; ",
		},
		"Azure": {
			"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:47.6805900,10,9\n",
			"16: 0s 374+44 <-1 23 blocks; 1s 10+9 <-1 0 blocks; ",
		},
		"Azure of 2024": {
			"TIMESTAMP,ContextTokens,GeneratedTokens\r\n2024-05-10 00:00:00.009930+00:00,2162,5\r\n2024-05-10 00:00:00.017335+00:00,16,1\r\n",
			"16: 0s 2162+5 <-1 135 blocks; 7.405ms 16+1 <-1 1 blocks; ",
		},
		"BurstGPT": {
			"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,472,18,490,Conversation log\n45.5,ChatGPT,1087,230,1317,API log\n",
			"16: 0s 472+18 <-1 29 blocks; 40.5s 1087+230 <-1 67 blocks; ",
		},
		"arrivals without a header": {
			" 0, 32, 5\n1.5, 16, 6\n",
			"16: 0s 32+5 <-1 2 blocks; 1.5s 16+6 <-1 1 blocks; ",
		},
		"WEKA with hash_ids": {
			"\ufeff" + `{"id":"s","block_size":64,"hash_id_scope":"global","requests":[
				{"t":0,"in":200,"out":1,"api_time":2,"hash_ids":[1,2,9]}]}`,
			"64: 0s 200+1 <-1 3 blocks; ",
		},
		"decisions": {
			decided(`"time_ms":1000000.5,"session":"00000000000000aa","prompt_bytes":1100,"blocks":["00000000000000f1","f2"],"ttft_ms":100,"duration_ms":300`) +
				decided(`"time_ms":1000100,"session":"00000000000000aa","prompt_bytes":100,"blocks":[],"ttft_ms":100,"duration_ms":1000.5`) +
				decided(`"time_ms":1002100.5,"session":"00000000000000aa","prompt_bytes":1600,"blocks":["f1","f2","f3"],"ttft_ms":1,"duration_ms":2,"output_tokens":7`) +
				strings.Replace(decided(`"time_ms":1002100.5,"prompt_bytes":0,"blocks":null`), "200", "503", 1),
			"128: 0s 275+20 <-1 2 blocks; 99.5ms 25+90 <-1 0 blocks; 2.1s 400+7 <1 gap 1s 3 blocks; ",
		},
		"decisions with tokens": { // two bytes are one
			decided(`"time_ms":5,"prompt_bytes":2000,"blocks":["1","2","3"],"input_tokens":1000,"output_tokens":4`) +
				decided(`"time_ms":6,"prompt_bytes":1024,"blocks":["1","2"]`),
			"256: 0s 1000+4 <-1 3 blocks; 1ms 512+0 <-1 2 blocks; ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var zipped bytes.Buffer
			w := gzip.NewWriter(&zipped)
			w.Write([]byte(c.text))
			w.Close()
			for _, in := range []string{c.text, zipped.String()} {
				trace, err := Read(strings.NewReader(in), TextBlock)
				if err != nil {
					t.Fatal(err)
				}
				if got := described(trace.ScheduleSessions(1, time.Second)); got != c.want {
					t.Errorf("the trace is\n%s; want\n%s", got, c.want)
				}
			}
		})
	}
}

// decided returns a line of a decision log with these fields.
func decided(fields string) string {
	return `{"v":1,"model":"m",` + fields + `,"block_bytes":512,"replica":"a","policy":"p","rank":1,"match":0.5,"waited_ms":0.1,"status":200}` + "\n"
}

// described returns a trace as text.
func described(t *Trace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: ", t.BlockTokens)
	for _, r := range t.Requests {
		fmt.Fprintf(&b, "%v %d+%d <%d ", r.At, r.Prompt, r.Output, r.Follows)
		if r.Gap > 0 {
			fmt.Fprintf(&b, "gap %v ", r.Gap)
		}
		fmt.Fprintf(&b, "%d blocks; ", len(r.chain(t.BlockTokens, nil)))
	}
	return b.String()
}

func TestTraceForModel(t *testing.T) {
	one := decided(`"time_ms":1,"session":"s","prompt_bytes":512,"blocks":["1"],"duration_ms":1`)
	other := strings.Replace(one, `"model":"m"`, `"model":"other"`, 1)
	later := strings.Replace(one, `"time_ms":1`, `"time_ms":9`, 1)
	trace, err := Read(strings.NewReader(one+other+later), TextBlock)
	if err != nil {
		t.Fatal(err)
	}
	for model, want := range map[string]string{"m": "128: 0s 128+0 <-1 1 blocks; 8ms 128+0 <0 gap 7ms 1 blocks; ", "other": "128: 0s 128+0 <-1 1 blocks; "} {
		of, err := trace.ForModel(model)
		if err != nil {
			t.Fatal(err)
		}
		if got := described(of); got != want {
			t.Errorf("of model %s the trace is\n%s; want\n%s", model, got, want)
		}
		if again, err := of.ForModel(""); err != nil || again != of {
			t.Errorf("a trace of one model needs its name: %v", err)
		}
	}
	if _, err := trace.ForModel(""); err == nil || !strings.Contains(err.Error(), `["m" "other"]`) {
		t.Errorf("without a name: %v", err)
	}
}

func TestTraceEqualPrefixesHaveEqualChains(t *testing.T) {
	chain := func(seed uint64, runs ...run) []uint64 {
		return (&Request{Prompt: 64, seed: seed, runs: runs}).chain(16, nil)
	}
	a, b := chain(1, run{5, 4}), chain(1, run{5, 2}, run{9, 2})
	if a[1] != b[1] || a[2] == b[2] || a[3] == b[3] {
		t.Errorf("%x and %x must share exactly their first two hashes", a, b)
	}
	if c := chain(2, run{5, 4}); c[0] == a[0] {
		t.Error("equal ids under another seed give an equal hash")
	}
}

func TestReadRejectsInvalidTraces(t *testing.T) {
	for text, want := range map[string]string{
		"":                                      "empty",
		" \n":                                   "empty",
		"{}":                                    "record 1: unknown format: none of v, requests, hash_ids, input and input_tok_ids",
		`{"hash_ids":[1],"input_length":-1}`:    "record 1: invalid token counts: -1 of the prompt",
		`{"requests":[{"in":1}]}`:               "invalid block_size 0",
		`{"hash_ids":[1]} {"input_tok_ids":[]}`: "record 2: blocks of 16 tokens after some of 512",
		`{"hash_ids":`:                          "record 1: unexpected EOF",
		"\x1f\x8bnonsense":                      "gzip",
		"\x1f\x8b\x08":                          "unexpected EOF",
		`{"hash_ids":[1],"timestamp":-5}`:       "record 1: time is negative",
		`{"hash_ids":[1],"timestamp":1e300}`:    "record 1: time is",
		`{"hash_ids":[1.5]}`:                    "record 1: json: cannot unmarshal number 1.5",
		`{"requests":[{"in":1,"hash_runs":[[1,4294967296]]}],"block_size":9}`: "record 1: run of 4294967296 blocks",
		`{"v":2}`:                                  "record 1: decision log version 2",
		`{"v":1,"status":200}`:                     "invalid block_bytes 0",
		decided(`"prompt_bytes":-1`):               "invalid prompt_bytes -1",
		decided(`"blocks":["xyz"]`):                `block "xyz" is not a hash`,
		decided(`"prompt_bytes":9,"time_ms":-1`):   "time is negative",
		decided(`"input_tokens":-1`):               "invalid token counts: -1 of the prompt",
		decided(`"status":503`) + `{"hash_ids":9}`: "record 2",
		`nonsense`:          "row 1: neither JSON nor a CSV header with one of timestamp",
		"timestamp,model\n": "row 1: neither JSON nor a CSV header with one of contexttokens",
		"1,2,3\n1,2\n":      "row 2",
		"1,2,3\n1,x,3\n":    "row 2: strconv.Atoi",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2": "row 2",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n":              "no requests",
	} {
		_, err := Read(strings.NewReader(text), TextBlock)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Read(%q) returns %v; want %q", text, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"hash_ids":[1,2],"input_length":1000,"timestamp":3}`))
	f.Add([]byte(`{"id":"s","block_size":64,"requests":[{"t":1,"in":99,"hash_runs":[[1,1]]},{"requests":[{"in":5}]}]}`))
	f.Add([]byte(`{"input":"text","session_id":"s"}`))
	f.Add([]byte(`{"input_tok_ids":[1,2,3]}`))
	f.Add([]byte(decided(`"time_ms":5,"session":"a","prompt_bytes":1024,"blocks":["1","2"],"input_tokens":9,"duration_ms":1e99`)))
	f.Add([]byte("Timestamp,Model,Request tokens,Response tokens\n5,ChatGPT,472,18\n"))
	f.Add([]byte("2023-11-16 18:15:46.6805900,374,44\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		trace, err := Read(bytes.NewReader(text), TextBlock)
		if err != nil {
			return
		}
		trace = trace.ScheduleSessions(1, time.Second)
		for i := range min(len(trace.Requests), 100) {
			r := &trace.Requests[i]
			if r.Prompt < 1 || r.Follows >= len(trace.Requests) || r.Follows == i {
				t.Fatalf("request %d is %+v", i, *r)
			}
			if r.Prompt < 1<<20 {
				r.chain(trace.BlockTokens, nil)
			}
		}
	})
}
