package routers

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// argumentRow is a row of the table of policies in docs/configuration.md: class, argument, type and
// default. Rows that follow that of a class leave the class out.
var argumentRow = regexp.MustCompile("(?m)^\\| ?(?:`(\\w+Router)`[^|]*)?\\| `([a-z_]+)` \\|[^|]+\\|([^|]+)\\|")

// knownArguments returns the arguments of a class, as its error names them.
func knownArguments(t *testing.T, class string) []string {
	t.Helper()
	_, err := Lookup(class, map[string]any{"no_such_argument": 1})
	if err == nil {
		t.Fatalf("%s accepts any argument", class)
	}
	_, list, found := strings.Cut(err.Error(), "the known ones are ")
	if !found {
		return nil
	}
	return strings.Split(list, ", ")
}

// The page of configuration has the arguments of every policy with their defaults.
func TestLookupArgumentsAreDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Policies\n")
	section, _, _ = strings.Cut(section, "\n## ")
	hash, prefix := DefaultHashOptions, DefaultPrefixOptions
	defaults := map[string]any{
		"num_virtual_nodes": hash.VirtualNodes, "num_fallback_replicas": hash.Fallbacks, "max_load_factor": "none",
		"match_rate_threshold": prefix.MatchRate, "imbalanced_threshold": "infinity", "block_bytes": prefix.BlockBytes,
		"kv_cache_tokens": prefix.KVBlocks, "prefix_index_bytes": prefix.IndexBytes,
	}
	if hash.MaxLoadFactor != 0 || !math.IsInf(prefix.Imbalance, 1) {
		t.Error("max_load_factor and imbalanced_threshold have defaults now; put them into docs/configuration.md and here")
	}
	documented, class := map[string][]string{}, ""
	for _, row := range argumentRow.FindAllStringSubmatch(section, -1) {
		if row[1] != "" {
			class = row[1]
		}
		documented[class] = append(documented[class], row[2])
		if got, want := strings.Trim(row[3], " `"), fmt.Sprint(defaults[row[2]]); got != want {
			t.Errorf("docs/configuration.md gives %s of %s the default %s, want %s", row[2], class, got, want)
		}
	}
	for class := range classes {
		known := slices.DeleteFunc(knownArguments(t, class), func(name string) bool {
			return strings.HasPrefix(name, "do_eviction") || strings.HasPrefix(name, "eviction_") // accepted for Ray's sake
		})
		slices.Sort(documented[class])
		if !slices.Equal(documented[class], known) {
			t.Errorf("docs/configuration.md has the arguments %v of %s, want %v", documented[class], class, known)
		}
		if !strings.Contains(section, "`"+class+"`") {
			t.Errorf("docs/configuration.md does not have %s", class)
		}
	}
}
