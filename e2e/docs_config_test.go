package e2e

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"berth/config"
)

const configurationPage = "../docs/configuration.md"

var (
	// configHeading matches a heading with the path of a mapping; the table below it lists the
	// keys.
	configHeading = regexp.MustCompile("^#+ (?:`([a-z_.\\[\\]]+)`|The file)$")
	configRow     = regexp.MustCompile("^\\| `([a-z0-9_]+)` \\|([^|]+)\\|([^|]*)\\|([^|]+)\\|$")
)

// configKey is a row of a table of keys.
type configKey struct{ kind, def, meaning string }

// documentedKeys returns the keys of docs/configuration.md by path: http.tls.cert_file,
// llm_configs[].timeouts.connect_s.
func documentedKeys(t *testing.T) map[string]configKey {
	t.Helper()
	keys, prefix, inTable := map[string]configKey{}, "", false
	for line := range strings.Lines(readDocument(t, configurationPage)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			h := configHeading.FindStringSubmatch(line)
			inTable = h != nil
			prefix = ""
			if inTable && h[1] != "" {
				prefix = h[1] + "."
			}
			continue
		}
		if row := configRow.FindStringSubmatch(line); inTable && row != nil {
			name := prefix + row[1]
			if _, duplicate := keys[name]; duplicate {
				t.Errorf("%s documents %s twice", configurationPage, name)
			}
			keys[name] = configKey{strings.TrimSpace(row[2]), strings.TrimSpace(row[3]), strings.TrimSpace(row[4])}
		}
	}
	return keys
}

// flatten adds the keys of a YAML value to leaves, each with its value: nil for a mapping or a list
// of mappings.
func flatten(value any, path string, leaves map[string]any) {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			name := strings.TrimPrefix(path+"."+key, ".")
			leaves[name] = nil
			flatten(child, name, leaves)
		}
	case []any:
		for _, item := range v {
			if _, is := item.(map[string]any); is {
				flatten(item, path+"[]", leaves)
			} else {
				leaves[path] = value
			}
		}
		if len(v) == 0 {
			leaves[path] = value
		}
	default:
		leaves[path] = value
	}
}

// parseYAML returns the keys of a YAML document by path, see flatten.
func parseYAML(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var value any
	if err := yaml.Unmarshal(text, &value); err != nil {
		t.Fatal(err)
	}
	leaves := map[string]any{}
	flatten(value, "", leaves)
	return leaves
}

// disabledLine matches a line of the example with a key that is commented out.
var disabledLine = regexp.MustCompile(`(?m)^( *)# ((?: {2})*(?:- )?[a-z][a-z0-9_]*:(?: .*)?)$`)

// A test of package config checks that the example has every key of the schema. This test checks
// that the page has every key of the example.
func TestConfigurationPageHasEveryKey(t *testing.T) {
	t.Parallel()
	example, err := os.ReadFile("../config/example.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documented, exist := documentedKeys(t), map[string]bool{}
	for name := range parseYAML(t, disabledLine.ReplaceAll(example, []byte("$1$2"))) {
		if strings.Contains(name, "applications[].args.llm_configs[]") {
			continue
		}
		exist[name] = true
		if _, ok := documented[name]; !ok {
			t.Errorf("%s lacks the key %s: add a row | `key` | type | default | meaning |", configurationPage, name)
		}
	}
	for name, key := range documented {
		if !exist[name] {
			t.Errorf("%s documents %s, which does not exist", configurationPage, name)
		}
		if len(key.kind) < 3 || len(key.meaning) < 8 {
			t.Errorf("%s: the row of %s is incomplete: %+v", configurationPage, name, key)
		}
	}
}

// leastConfig sets no key that has a default.
const leastConfig = `llm_configs:
- {model_loading_config: {model_id: a}, replicas: [{url: "http://10.0.0.1"}]}
- {model_loading_config: {model_id: b}, simulated: {}}
- {model_loading_config: {model_id: c}, dns: {name: c, port: 1}, kubernetes: {service: c}}
`

func TestConfigurationPageHasTheDefaults(t *testing.T) {
	t.Parallel()
	c, _, err := config.Parse([]byte(leastConfig), "least.yaml", config.Checks{})
	if err != nil {
		t.Fatal(err)
	}
	documented, checked := documentedKeys(t), 0
	effective := parseYAML(t, c.YAML())
	for _, name := range slices.Sorted(maps.Keys(effective)) {
		value := effective[name]
		key, ok := documented[name]
		if value == nil || !ok {
			continue // a mapping; TestConfigurationPageHasEveryKey finds keys that are missing
		}
		written, isCode := strings.CutPrefix(key.def, "`")
		if !isCode {
			continue // derived from other keys, or required
		}
		checked++
		if want := strings.Trim(strings.ReplaceAll(fmt.Sprint(value), " ", ", "), `"`); strings.Trim(written, "`") != want {
			t.Errorf("%s: the default of %s is %s, documented as %s", configurationPage, name, want, key.def)
		}
	}
	if checked < 28 {
		t.Errorf("%d defaults were compared, want at least 28", checked)
	}
}
