package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// maxNames bounds the names that one change lists.
const maxNames = 10

// Diff returns the differences between two configurations in words for a log, each with the keys of
// the file: "model qwen: replicas added: c", "http.drain_timeout_s: 600 -> 30". There are none if
// the two are equal. API keys appear by name only.
//
// The comparison is that of the texts of [Config.YAML], in which every key has a line of its own.
func Diff(old, next *Config) (changes []string) {
	changes = append(changes, diffNamed("models", modelTexts(old.Models), modelTexts(next.Models))...)
	for _, m := range next.Models {
		if i := slices.IndexFunc(old.Models, func(o Model) bool { return o.ID == m.ID }); i >= 0 {
			for _, change := range diffModel(old.Models[i], m) {
				changes = append(changes, "model "+m.ID+": "+change)
			}
		}
	}
	changes = append(changes, diffNamed("auth.keys", keyTexts(old.Auth.Keys), keyTexts(next.Auth.Keys))...)
	changes = append(changes, diffLines(old.withoutLists(), next.withoutLists())...)
	if len(changes) == 0 && !reflect.DeepEqual(old, next) {
		changes = []string{"only the order of models, replicas or keys"}
	}
	return changes
}

// withoutLists returns the keys outside models and API keys.
func (c *Config) withoutLists() []byte {
	short := *c
	short.Models, short.Auth.Keys = nil, nil
	return short.YAML()
}

// A namedText is an item of a list: Diff lists it as changed if it has another text in the other
// configuration.
type namedText struct{ name, text string }

// modelTexts returns the names alone: diffModel has the details.
func modelTexts(models []Model) (texts []namedText) {
	for _, m := range models {
		texts = append(texts, namedText{name: m.ID})
	}
	return texts
}

func keyTexts(keys []Key) (texts []namedText) {
	for _, k := range keys {
		name := k.Name
		k.Name = ""
		texts = append(texts, namedText{name, fmt.Sprint(k)})
	}
	return texts
}

func diffModel(old, next Model) (changes []string) {
	changes = diffNamed("replicas", replicaTexts(old.Replicas), replicaTexts(next.Replicas))
	text := func(m Model) []byte {
		m.Replicas = nil
		w := new(writer)
		w.model(m)
		return w.Bytes()
	}
	return append(changes, diffLines(text(old), text(next))...)
}

func replicaTexts(replicas []Replica) (texts []namedText) {
	for _, r := range replicas {
		w := new(writer)
		w.replica(r, "")
		texts = append(texts, namedText{r.ID, w.String()})
	}
	return texts
}

// diffNamed compares the items of a list by name.
func diffNamed(list string, old, next []namedText) (changes []string) {
	texts := make(map[string]string, len(old))
	for _, item := range old {
		texts[item.name] = item.text
	}
	var added, changed, removed []string
	for _, item := range next {
		before, known := texts[item.name]
		switch {
		case !known:
			added = append(added, item.name)
		case before != item.text:
			changed = append(changed, item.name)
		}
		delete(texts, item.name)
	}
	for _, item := range old {
		if _, gone := texts[item.name]; gone {
			removed = append(removed, item.name)
		}
	}
	for _, kind := range []struct {
		verb  string
		names []string
	}{{"added", added}, {"removed", removed}, {"changed", changed}} {
		if n := len(kind.names); n > 0 {
			text := list + " " + kind.verb + ": " + strings.Join(kind.names[:min(n, maxNames)], ", ")
			if n > maxNames {
				text += fmt.Sprintf(" and %d more", n-maxNames)
			}
			changes = append(changes, text)
		}
	}
	return changes
}

// diffLines compares two texts of a writer by key.
func diffLines(old, next []byte) (changes []string) {
	before, after := valuesByKey(old), valuesByKey(next)
	values := make(map[string]string, len(before))
	for _, v := range before {
		values[v.key] = v.value
	}
	for _, v := range after {
		was, known := values[v.key]
		switch {
		case !known:
			changes = append(changes, v.key+": set to "+v.value)
		case was != v.value:
			changes = append(changes, v.key+": "+was+" -> "+v.value)
		}
		delete(values, v.key)
	}
	for _, v := range before {
		if _, gone := values[v.key]; gone {
			changes = append(changes, v.key+": removed")
		}
	}
	return changes
}

type keyValue struct{ key, value string }

// valuesByKey returns the lines of a writer's text that have a value, with the keys joined by dots.
// The text has no lists in block style, except that it may be one item of a list.
func valuesByKey(text []byte) (values []keyValue) {
	path := make([]string, 8) // by indentation; of an item of a list the first ones stay empty
	for line := range strings.Lines(string(text)) {
		key := strings.TrimLeft(line, " -")
		level := (len(line) - len(key)) / 2
		key, value, _ := strings.Cut(strings.TrimSpace(key), ":")
		if path[level] = key; value != "" {
			parents := slices.DeleteFunc(slices.Clone(path[:level+1]), func(p string) bool { return p == "" })
			values = append(values, keyValue{strings.Join(parents, "."), strings.TrimSpace(value)})
		}
	}
	return values
}
