// Package config turns a YAML file into the effective configuration of berth: plain data, complete and checked.
//
// The schema is that of Ray Serve LLM as far as the two overlap, so that its users bring their files along.
// Reading is strict and reports everything at once: an unknown key, a wrong type, a value out of range or a
// contradiction is a [Problem] with file, line and column. Keys that only Ray's launcher or controller gives
// effect to are accepted and named in one warning per file.
//
// Numbers are decimal; a whole number may be written 1000000000, 1_000_000_000 or 1e9. Durations are numbers
// whose key names the unit. Anchors, aliases and merge keys work; tags do not.
package config
