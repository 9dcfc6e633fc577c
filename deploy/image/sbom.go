package main

import (
	"debug/buildinfo"
	"encoding/json"
	"runtime/debug"
	"strings"
)

// component is a module in CycloneDX 1.6.
type component struct {
	Type    string `json:"type"`
	Ref     string `json:"bom-ref"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl"`
}

// newComponent returns the component of a Go module or program.
func newComponent(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + version
	return component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl}
}

// billOfMaterials returns the modules linked into a Go binary, as the binary itself records them,
// and Go's standard library, in the JSON form of CycloneDX. The document has no time and no serial
// number, so that equal binaries have equal documents.
func billOfMaterials(binary, version string) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	program := newComponent("application", info.Main.Path, version)
	components := []component{newComponent("library", "stdlib", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		components = append(components, newComponent("library", module.Path, moduleVersion(module)))
	}
	var refs []string
	for _, c := range components {
		refs = append(refs, c.Ref)
	}
	return json.MarshalIndent(map[string]any{
		"bomFormat":    "CycloneDX",
		"specVersion":  "1.6",
		"version":      1,
		"metadata":     map[string]any{"component": program},
		"components":   components,
		"dependencies": []any{map[string]any{"ref": program.Ref, "dependsOn": refs}},
	}, "", "  ")
}

// moduleVersion returns the version that was linked, which a replace directive may have changed.
func moduleVersion(m *debug.Module) string {
	if m.Replace != nil && m.Replace.Version != "" {
		return m.Replace.Version
	}
	return m.Version
}
