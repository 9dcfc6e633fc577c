package replay

import (
	"bufio"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestReadMooncakeScansItsLinesAndLeavesOthers(t *testing.T) {
	const published = `{"timestamp": 1, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 9]}` + "\n"
	for rest, requests := range map[string]int{
		"": 2,
		`{"timestamp":3,"input_length":2,"output_length":1,"hash_ids":[]}`:              3,
		`{"timestamp":3.5,"input_length":2,"output_length":1,"hash_ids":[7]}`:           3,
		`{"hash_ids":[18446744073709551615],"timestamp":4}` + published:                 4,
		`{"timestamp":3,"input_length":2,"output_length":1,"hash_ids":[7],"more":{}}`:   3,
		`{"timestamp":3,"input_length":2,"output_length":1,"hash_ids":[7]}` + published: 4,
		"\n" + published: 3,
		`{"timestamp":3,"input_length":2,"output_length":1,"hash_ids":[` + strings.Repeat("7,", 9000) + "7]}": 3,
	} {
		in := bufio.NewReaderSize(strings.NewReader(published+published+rest), 4096)
		trace := new(Trace)
		if err := trace.readLines(in, TextBlock); err != nil || len(trace.Requests) != requests {
			t.Errorf("before %.80q: %d requests, %v; want %d", rest, len(trace.Requests), err, requests)
		}
	}
}

func FuzzReadMooncakeLine(f *testing.F) {
	f.Add(`{"timestamp": 1, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 9]}` + "\r\n")
	f.Add(`{"timestamp":1,"input_length":2,"output_length":1,"hash_ids":[ 7, 8, 9, 10,11,12, 12, 13,  14,998,999,1000,12345,12346,123456, 123457, 123458]}`)
	f.Add(`{"timestamp":1,"input_length":2,"output_length":1,"hash_ids":[1238,1239,123:,123;,1240]}`)
	f.Add(`{"timestamp":1,"input_length":2,"output_length":1,"hash_ids":[7]}` + "\v")
	f.Add(`{"timestamp":01,"input_length":2,"output_length":1,"hash_ids":[7,]}`)
	f.Add(`{"timestamp":1,"input_length":2,"output_length":1,"hash_ids":[7 8]}`)
	f.Add(`{"timestamp":1,"input_length":2,"output_length":1,"hash_ids":[,7]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var m mooncakeLine
		if !m.scan([]byte(text)) {
			return
		}
		var l record
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			t.Fatal(err)
		}
		byJSON := new(Trace)
		if got := m.newRequest(); byJSON.addMooncake(&l) == nil && got.Prompt > 0 && !reflect.DeepEqual(got, byJSON.Requests[0]) {
			t.Errorf("scanned as %+v, read as %+v", got, byJSON.Requests[0])
		}
	})
}
