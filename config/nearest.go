package config

import (
	"strconv"
	"strings"
)

// nearest returns the known key most similar to a misspelt key: the one at the smallest edit
// distance, up to a third of the length, else one containing the misspelt key, else an empty
// string.
func nearest(key string, known []string) string {
	best, fewest := "", len(key)/3+1
	for _, k := range known {
		if d := editDistance(strings.ToLower(key), k); d < fewest {
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

// editDistance returns the Levenshtein distance of a and b.
func editDistance(a, b string) int {
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

// display returns an identifier unchanged and any other word quoted, with long words truncated.
func display(word string) string {
	const maxLength = 60
	if len(word) > maxLength {
		return strconv.Quote(word[:maxLength]) + "…"
	}
	if variable.MatchString(word) {
		return word
	}
	return strconv.Quote(word)
}
