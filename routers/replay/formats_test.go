package replay

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestEachFormatIsRead(t *testing.T) {
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
	} {
		t.Run(name, func(t *testing.T) {
			var zipped bytes.Buffer
			w := gzip.NewWriter(&zipped)
			w.Write([]byte(c.text))
			w.Close()
			for _, in := range []string{c.text, zipped.String()} {
				trace, err := Read(strings.NewReader(in))
				if err != nil {
					t.Fatal(err)
				}
				if got := described(trace.Arrange(1, time.Second)); got != c.want {
					t.Errorf("it reads\n%s; want\n%s", got, c.want)
				}
			}
		})
	}
}

func described(t *Trace) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d: ", t.BlockTokens)
	for _, r := range t.Requests {
		fmt.Fprintf(&b, "%v %d+%d <%d ", r.At, r.Prompt, r.Output, r.Follows)
		if r.Gap > 0 {
			fmt.Fprintf(&b, "gap %v ", r.Gap)
		}
		fmt.Fprintf(&b, "%d blocks; ", len(r.chain(t.BlockTokens)))
	}
	return b.String()
}

func TestEqualBeginningsHaveEqualChains(t *testing.T) {
	chain := func(seed uint64, runs ...run) []uint64 {
		return (&Request{Prompt: 64, seed: seed, runs: runs}).chain(16)
	}
	a, b := chain(1, run{5, 4}), chain(1, run{5, 2}, run{9, 2})
	if a[1] != b[1] || a[2] == b[2] || a[3] == b[3] {
		t.Errorf("%x and %x are alike in their first two blocks only", a, b)
	}
	if c := chain(2, run{5, 4}); c[0] == a[0] {
		t.Error("equal ids of another session are taken for equal content")
	}
}

func TestATraceThatIsNoneSaysWhy(t *testing.T) {
	for text, says := range map[string]string{
		"":                                      "empty",
		"{}":                                    "record 1: it is of none of the known formats",
		`{"hash_ids":[1],"input_length":-1}`:    "record 1: it has -1 prompt tokens",
		`{"requests":[{"in":1}]}`:               "block_size is 0",
		`{"hash_ids":[1]} {"input_tok_ids":[]}`: "record 2: blocks of 16 tokens after some of 512",
		`{"hash_ids":`:                          "record 1: unexpected EOF",
		"\x1f\x8bnonsense":                      "gzip",
		"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2": "row 2",
		"TIMESTAMP,ContextTokens,GeneratedTokens\n":              "no requests",
	} {
		_, err := Read(strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Read(%q) says %v; want %q", text, err, says)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"hash_ids":[1,2],"input_length":1000,"timestamp":3}`))
	f.Add([]byte(`{"id":"s","block_size":64,"requests":[{"t":1,"in":99,"hash_runs":[[1,1]]},{"requests":[{"in":5}]}]}`))
	f.Add([]byte(`{"input":"text","session_id":"s"}`))
	f.Add([]byte(`{"input_tok_ids":[1,2,3]}`))
	f.Add([]byte("2023-11-16 18:15:46.6805900,374,44\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		trace, err := Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		trace = trace.Arrange(1, time.Second)
		for i := range min(len(trace.Requests), 100) {
			r := &trace.Requests[i]
			if r.Prompt < 1 || r.Follows >= len(trace.Requests) || r.Follows == i {
				t.Fatalf("request %d is %+v", i, *r)
			}
			if r.Prompt < 1<<20 {
				r.chain(trace.BlockTokens)
			}
		}
	})
}
