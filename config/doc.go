// Package config parses the YAML configuration of berth into a [Config], complete and validated.
//
// The schema is that of Ray Serve LLM where the two overlap, so Ray's files work unchanged. Keys
// used only by Ray's launcher or controller are accepted and listed in one warning per file.
// Parsing is strict and reports all problems at once: an unknown key, a wrong type, a value out of
// range or a contradiction is a [Problem] with file, line and column.
//
// Numbers are decimal; a whole number may be written 1000000000, 1_000_000_000 or 1e9. Durations
// are numbers whose key names the unit. Anchors, aliases and merge keys are supported, tags are
// not. A [Watcher] reloads the file after each change.
package config
