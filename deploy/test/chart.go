package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"sigs.k8s.io/yaml"
)

// releaseName is the name under which the chart is rendered.
const releaseName = "berth"

// renderChart renders the chart below root, as helm template does, with the values of a file or
// with the default ones.
func renderChart(root, namespace, valuesFile string) (string, error) {
	c, err := loader.Load(filepath.Join(root, "helm", "berth"))
	if err != nil {
		return "", err
	}
	values := map[string]any{}
	if valuesFile != "" {
		data, err := os.ReadFile(valuesFile)
		if err != nil {
			return "", err
		}
		if err := yaml.Unmarshal(data, &values); err != nil {
			return "", err
		}
	}
	files, err := renderValues(c, namespace, values)
	if err != nil {
		return "", err
	}
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".yaml") && strings.TrimSpace(files[name]) != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var all strings.Builder
	for _, name := range names {
		all.WriteString("---\n# " + name + "\n" + strings.TrimPrefix(strings.TrimSpace(files[name]), "---") + "\n")
	}
	return all.String(), nil
}

// renderValues returns the rendered files of a chart by name.
func renderValues(c *chart.Chart, namespace string, values map[string]any) (map[string]string, error) {
	release := common.ReleaseOptions{Name: releaseName, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(c, values, release, nil)
	if err != nil {
		return nil, err
	}
	return engine.Engine{}.RenderWithContext(context.Background(), c, all)
}
