// Command test renders the chart with each of the values files of deploy/examples, copies the other
// manifests there, and writes one file of Kubernetes manifests for each. The tests beside it check
// these manifests, the dashboard, the alert rules and the systemd unit.
//
// It is a module of its own: Helm, Kubernetes and Prometheus are large, and berth needs none of
// them.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	out := flag.String("out", "", "directory to write the manifests to")
	namespace := flag.String("namespace", "default", "namespace of the release")
	flag.Parse()
	if err := writeAll(*out, *namespace); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// writeAll writes one file for each set of manifests to dir and prints the names.
func writeAll(dir, namespace string) error {
	if dir == "" {
		return fmt.Errorf("-out is required: the directory to write the manifests to")
	}
	sets, err := manifestSets("..", namespace)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, s := range sets {
		path := filepath.Join(dir, s.name+".yaml")
		if err := os.WriteFile(path, []byte(s.text), 0o644); err != nil {
			return err
		}
		fmt.Println(path)
	}
	return nil
}

// manifestSet is what one kubectl apply would create.
type manifestSet struct{ name, text string }

// manifestSets returns the chart with its default values and with each values file, and the
// examples that are manifests already. root is the directory deploy.
func manifestSets(root, namespace string) ([]manifestSet, error) {
	text, err := renderChart(root, namespace, "")
	if err != nil {
		return nil, err
	}
	sets := []manifestSet{{"chart", text}}
	for _, pattern := range []string{"examples/*.yaml", "test/testdata/values-*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		if len(files) == 0 {
			return nil, fmt.Errorf("no files match %s", pattern)
		}
		for _, file := range files {
			name := strings.TrimSuffix(filepath.Base(file), ".yaml")
			values, isValues := strings.CutPrefix(name, "values-")
			if isValues {
				name = "chart-" + values
				text, err = renderChart(root, namespace, file)
			} else {
				var data []byte
				data, err = os.ReadFile(file)
				text = string(data)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			sets = append(sets, manifestSet{name, text})
		}
	}
	return sets, nil
}
