package e2e

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const modulePrefix = "berth/"

// internalPackages are the internal packages, which every package above config may import.
var internalPackages = []string{"internal/body", "internal/http1", "internal/openai", "internal/tcp"}

// mayImport lists the packages of this module that a package and its tests may import; * means all.
var mayImport = map[string][]string{
	"internal/body":       {},
	"internal/openai":     {},
	"internal/tcp":        {},
	"internal/http1":      {"internal/tcp"},
	"config":              {"internal/openai"},
	"streaming":           {"internal/openai"},
	"llmserver":           internalPackages,
	"llmserver/agent":     slices.Concat(internalPackages, []string{"llmserver", "streaming"}),
	"llmserver/discovery": {"internal/tcp", "llmserver"},
	"llmserver/simulated": {"llmserver"},
	"routers":             {"llmserver", "routers/prefixindex"},
	"routers/prefixindex": {},
	"routers/replay":      {"routers", "llmserver", "llmserver/simulated"},
	"ingress/telemetry":   {"config", "routers", "llmserver", "streaming"},
	"ingress": slices.Concat(internalPackages, []string{"ingress/telemetry", "routers", "streaming", "config", "llmserver",
		"llmserver/agent", "llmserver/discovery", "llmserver/simulated"}),
	"cmd/berth":  {"*"},
	"e2e/scenes": {},
	"e2e/bench":  {"e2e/scenes"},
	"e2e":        {"e2e/scenes", "config", "ingress", "llmserver", "llmserver/agent", "llmserver/simulated"},
}

// testsMayImport lists additional packages that the tests of a package may import.
var testsMayImport = map[string][]string{
	"llmserver/agent": {"llmserver/simulated"},
	"routers":         {"llmserver/agent"}, // integration tests of agent waits
}

// libraryUsers lists the packages that may import a library outside of tests.
var libraryUsers = map[string][]string{
	"github.com/gin-gonic/gin":            {"ingress"},
	"github.com/prometheus/client_golang": {"ingress/telemetry", "llmserver/agent"},
	"go.opentelemetry.io":                 {"ingress/telemetry"},
	"github.com/goccy/go-yaml":            {"config"},
	"github.com/miekg/dns":                {"llmserver/discovery"},
	"k8s.io":                              {"llmserver/discovery"},
	"github.com/spf13/cobra":              {"cmd/berth"},
	"github.com/openai/openai-go/v3":      {},
	"go.uber.org/goleak":                  {},
	"pgregory.net/rapid":                  {},
	"testing":                             {},
	"net/http/httputil":                   {},
}

// dependencies are the direct dependencies. A new one needs a good reason.
var dependencies = []string{
	"github.com/cespare/xxhash/v2",
	"github.com/gin-gonic/gin",
	"github.com/goccy/go-yaml",
	"github.com/google/uuid",
	"github.com/miekg/dns", // TTL and SRV priorities, which net.Resolver lacks
	"github.com/openai/openai-go/v3",
	"github.com/prometheus/client_golang",
	"github.com/prometheus/common", // tests only: the reference parser of the text format
	"github.com/sashabaranov/go-openai",
	"github.com/spaolacci/murmur3",
	"github.com/spf13/cobra",
	"github.com/tidwall/gjson",
	"go.opentelemetry.io/otel",
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace",
	"go.opentelemetry.io/otel/sdk",
	"go.opentelemetry.io/otel/trace",
	"go.opentelemetry.io/proto/otlp", // with protobuf, in place of OpenTelemetry's own OTLP client, which needs gRPC
	"go.uber.org/goleak",
	"golang.org/x/net", // validation of header fields and hosts
	"google.golang.org/protobuf",
	"k8s.io/api", // types of client-go
	"k8s.io/apimachinery",
	"k8s.io/client-go", // list and watch with all their failures; the REST client without a clientset
	"k8s.io/klog/v2",   // to silence client-go
	"pgregory.net/rapid",
}

// sourcePackage is the output of go list for a package.
type sourcePackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

// packages returns all packages of the module.
func packages(t *testing.T) (all []sourcePackage) {
	t.Helper()
	stream := json.NewDecoder(strings.NewReader(goTool(t, "", "list", "-json=ImportPath,Imports,TestImports,XTestImports", "berth/...")))
	for {
		var p sourcePackage
		if err := stream.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		p.ImportPath = strings.TrimPrefix(p.ImportPath, modulePrefix)
		all = append(all, p)
	}
}

// goTool runs the go command in the given directory, or the current one if dir is empty, and
// returns its output.
func goTool(t *testing.T, dir string, args ...string) string {
	t.Helper()
	if err := walkSources(); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("go", args...)
	c.Dir = dir
	out, err := c.Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		t.Fatalf("go %v: %v\n%s", args, err, failed.Stderr)
	} else if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

func TestPackagesImportOnlyWhatTheyMay(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		allowed, known := mayImport[p.ImportPath]
		if !known {
			t.Errorf("%s has no row in mayImport", p.ImportPath)
		}
		check := func(imports, allowed []string) {
			for _, path := range imports {
				name, ours := strings.CutPrefix(path, modulePrefix)
				if ours && name != p.ImportPath && !slices.Contains(allowed, name) && !slices.Contains(allowed, "*") {
					t.Errorf("%s must not import %s", p.ImportPath, name)
				}
			}
		}
		check(p.Imports, allowed)
		check(slices.Concat(p.TestImports, p.XTestImports), slices.Concat(allowed, testsMayImport[p.ImportPath]))
	}
}

// A row of a package that does not exist would allow imports without review when the package is
// added.
func TestImportTablesNamePackagesThatExist(t *testing.T) {
	t.Parallel()
	var exist []string
	for _, p := range packages(t) {
		exist = append(exist, p.ImportPath)
	}
	for _, table := range []map[string][]string{mayImport, testsMayImport} {
		for name, imports := range table {
			for _, path := range append([]string{name}, imports...) {
				if path != "*" && !slices.Contains(exist, path) {
					t.Errorf("the row of %s names %s, which does not exist", name, path)
				}
			}
		}
	}
	for library, users := range libraryUsers {
		for _, path := range users {
			if !slices.Contains(exist, path) {
				t.Errorf("the row of %s names %s, which does not exist", library, path)
			}
		}
	}
}

func TestLibrariesStayInTheirPackages(t *testing.T) {
	t.Parallel()
	for _, p := range packages(t) {
		for _, path := range p.Imports {
			for library, users := range libraryUsers {
				if (path == library || strings.HasPrefix(path, library+"/")) && !slices.Contains(users, p.ImportPath) {
					t.Errorf("%s must not import %s", p.ImportPath, path)
				}
			}
		}
	}
}

func TestDependenciesAreThoseListed(t *testing.T) {
	t.Parallel()
	var module struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal([]byte(goTool(t, "", "mod", "edit", "-json")), &module); err != nil {
		t.Fatal(err)
	}
	var direct []string
	for _, r := range module.Require {
		if !r.Indirect {
			direct = append(direct, r.Path)
		}
	}
	slices.Sort(direct)
	if !slices.Equal(direct, dependencies) {
		t.Errorf("go.mod requires\n\t%s\nwant\n\t%s", strings.Join(direct, "\n\t"), strings.Join(dependencies, "\n\t"))
	}
}
