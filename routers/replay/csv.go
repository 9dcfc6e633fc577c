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

// columns are the indexes of the arrival time, the prompt tokens and the output tokens in a row.
type columns [3]int

// titles are the names of each column in known recordings, such as Azure's and BurstGPT's, in lower
// case.
var titles = [3][]string{
	{"timestamp", "time", "arrival_time", "arrived_at"},
	{"contexttokens", "request tokens", "input_length", "input_tokens", "prompt_tokens", "num_prefill_tokens"},
	{"generatedtokens", "response tokens", "output_length", "output_tokens", "completion_tokens", "num_decode_tokens"},
}

// layouts are the formats of times other than a number of seconds.
var layouts = []string{"2006-01-02 15:04:05.9999999", "2006-01-02 15:04:05.9999999Z07:00", time.RFC3339Nano}

// readCSV reads arrivals: time, prompt tokens and output tokens, in the columns named by the
// header, or in this order if there is no header.
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
			if _, notTime := parseTime(row[0]); notTime != nil {
				if where, err = findColumns(row); err == nil {
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

// findColumns finds the columns by their titles.
func findColumns(row []string) (where columns, err error) {
	for i, known := range titles {
		where[i] = slices.IndexFunc(row, func(title string) bool {
			return slices.Contains(known, strings.ToLower(strings.TrimSpace(title)))
		})
		if where[i] < 0 {
			return where, fmt.Errorf("neither JSON nor a CSV header with one of %s", strings.Join(known, ", "))
		}
	}
	return where, nil
}

// addArrival adds a request with a prompt that shares no prefix with any other.
func (t *Trace) addArrival(row []string, where columns, n int) error {
	if len(row) <= max(where[0], where[1], where[2]) {
		return fmt.Errorf("only %d columns", len(row))
	}
	at, err := parseTime(row[where[0]])
	prompt, err2 := strconv.Atoi(row[where[1]])
	output, err3 := strconv.Atoi(row[where[2]])
	if err = errors.Join(err, err2, err3); err != nil {
		return err
	}
	return t.addRequest(tokensBlock, Request{
		At: at, Prompt: prompt, Output: output, Follows: -1, seed: mix(uint64(n)), runs: []run{{0, prompt / tokensBlock}},
	})
}

// parseTime returns a time since 1970, or a number of seconds since any origin.
func parseTime(text string) (time.Duration, error) {
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
