package replay

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// columns are where a row of a CSV has its time, its prompt's tokens and its answer's.
type columns [3]int

// titles are what each is called in recordings that are known, in lower case: Azure's, BurstGPT's and some more.
var titles = [3][]string{
	{"timestamp", "time", "arrival_time", "arrived_at"},
	{"contexttokens", "request tokens", "input_length", "input_tokens", "prompt_tokens", "num_prefill_tokens"},
	{"generatedtokens", "response tokens", "output_length", "output_tokens", "completion_tokens", "num_decode_tokens"},
}

// layouts are the forms of a time that is no number of seconds.
var layouts = []string{"2006-01-02 15:04:05.9999999", "2006-01-02 15:04:05.9999999Z07:00", time.RFC3339Nano}

// readCSV reads arrivals: a time, the tokens of the prompt and those of the answer, in the columns
// that the first row says, or in this order.
func (t *Trace) readCSV(in io.Reader) error {
	rows := csv.NewReader(in)
	rows.ReuseRecord = true
	rows.TrimLeadingSpace = true
	where := columns{0, 1, 2}
	for n := 1; ; n++ {
		row, err := rows.Read()
		if err == io.EOF {
			return nil
		}
		if err == nil && n == 1 {
			if _, noTime := moment(row[0]); noTime != nil {
				if where, err = header(row); err == nil {
					continue
				}
			}
		}
		if err == nil {
			err = t.addArrival(row, where, n)
		}
		if err != nil {
			return fmt.Errorf("row %d: %w", n, err)
		}
	}
}

// header finds the columns by their titles.
func header(row []string) (where columns, err error) {
	for i, known := range titles {
		where[i] = slices.IndexFunc(row, func(title string) bool {
			return slices.Contains(known, strings.ToLower(strings.TrimSpace(title)))
		})
		if where[i] < 0 {
			return where, fmt.Errorf("it is neither JSON nor a header with one of %s", strings.Join(known, ", "))
		}
	}
	return where, nil
}

// addArrival takes a request of which nothing is known to be in common with any other.
func (t *Trace) addArrival(row []string, where columns, n int) error {
	if len(row) <= max(where[0], where[1], where[2]) {
		return fmt.Errorf("it has %d columns", len(row))
	}
	at, err := moment(row[where[0]])
	prompt, err2 := strconv.Atoi(row[where[1]])
	output, err3 := strconv.Atoi(row[where[2]])
	if err = errors.Join(err, err2, err3); err != nil {
		return err
	}
	return t.add(tokensBlock, Request{
		At: at, Prompt: prompt, Output: output, Follows: -1, seed: mix(uint64(n)), runs: []run{{0, prompt / tokensBlock}},
	})
}

// moment is a time since 1970, or since whatever the recording counts its seconds from.
func moment(text string) (time.Duration, error) {
	if s, err := strconv.ParseFloat(text, 64); err == nil && s == s {
		return seconds(s), nil
	}
	for _, layout := range layouts {
		if at, err := time.Parse(layout, text); err == nil {
			return seconds(float64(at.Unix())) + time.Duration(at.Nanosecond()), nil
		}
	}
	return 0, fmt.Errorf("%.40q is neither a time like 2006-01-02 15:04:05.9 nor a number of seconds", text)
}
