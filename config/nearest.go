package config

import (
	"strconv"
	"strings"
)

// nearest returns the known key that a misspelt one most likely means: the one within the fewest edits, at
// most a third of its letters, else one that it is a part of. Empty if there is none.
func nearest(key string, known []string) string {
	best, fewest := "", len(key)/3+1
	for _, k := range known {
		if d := edits(strings.ToLower(key), k); d < fewest {
			best, fewest = k, d
		}
	}
	if best != "" || len(key) < 4 {
		return best
	}
	for _, k := range known {
		if strings.Contains(k, key) {
			return k
		}
	}
	return ""
}

// edits is the Levenshtein distance: how many letters must be put in, taken out or exchanged.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			exchanged := diagonal
			if a[i] != b[j] {
				exchanged++
			}
			diagonal = row[j+1]
			row[j+1] = min(exchanged, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// display shows a foreign word as it is if it can only be read one way, else quoted; a long one is cut.
func display(word string) string {
	const longest = 60
	if len(word) > longest {
		return strconv.Quote(word[:longest]) + "…"
	}
	if variable.MatchString(word) {
		return word
	}
	return strconv.Quote(word)
}
