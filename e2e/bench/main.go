package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"berth/e2e/scenes"
)

// options holds the values of the command-line flags.
type options struct {
	workloads, berth, against, page, chart string
	routers                                bool
	rounds                                 int
	duration                               time.Duration
	minutes                                float64
}

func main() {
	if scenes.ServeEngine() {
		exit(nil)
	}
	if len(os.Args) == 2 && os.Args[1] == "engine" {
		exit(serveEngine())
	}
	var o options
	var names []string
	for _, w := range workloads {
		names = append(names, w.name)
	}
	flag.StringVar(&o.workloads, "work", strings.Join(names, ","), "the workloads to measure, and any of the checks disconnects, connections and soak; or overload: goodput against offered load, of berth, HAProxy and the routers of -routers; or scenes: failing replicas behind the routers; either alone")
	flag.StringVar(&o.berth, "berth", "", "the berth binary to measure; built from ./cmd/berth if empty")
	flag.StringVar(&o.against, "against", "", "another berth binary to compare with")
	flag.BoolVar(&o.routers, "routers", false, "also measure vllm-router and sglang-router, installed from PyPI into the user's cache directory")
	flag.StringVar(&o.page, "page", "", "a Markdown file whose results section is rewritten")
	flag.StringVar(&o.chart, "picture", "docs/cost.svg", "the file for the chart of -page")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds per target")
	flag.DurationVar(&o.duration, "time", 2*time.Second, "measured time per round")
	flag.Float64Var(&o.minutes, "minutes", 10, "duration of the soak check, in minutes")
	flag.Parse()
	exit(run(o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(o options) error {
	if o.workloads == "scenes" {
		return playScenes(o.page)
	}
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		return errors.New("/proc is required for CPU times and is missing")
	}
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.berth == "" {
		o.berth = filepath.Join(dir, "berth")
		if err := buildBerth(o.berth); err != nil {
			return err
		}
	}
	load, err := loadAverage()
	if err != nil {
		return err
	}
	if o.workloads == "overload" {
		return runOverload(dir, load, o)
	}
	engine, stop, err := startEngine()
	if err != nil {
		return err
	}
	defer stop()
	all, err := newTargets(dir, engine, o.berth, o.against)
	if err != nil {
		return err
	}
	if o.routers {
		added, err := newRouterTargets(engine)
		if err != nil {
			return err
		}
		all = append(all, added...)
	}
	var results []*result
	for name := range strings.SplitSeq(o.workloads, ",") {
		r, err := runCheckOrWorkload(name, all, engine, o)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if r != nil {
			fmt.Println(r.table())
			results = append(results, r)
		}
	}
	if o.page == "" || len(results) == 0 {
		return nil
	}
	return writePage(o, results, load)
}

// runOverload measures the workload overload and prints or writes the result.
func runOverload(dir, load string, o options) error {
	r, err := measureOverload(dir, o.berth, o.duration)
	if err != nil {
		return err
	}
	fmt.Println(r.tables())
	if o.page == "" {
		return nil
	}
	return r.write(o.page, load)
}

func buildBerth(binary string) error {
	build := exec.Command("go", "build", "-o", binary, "berth/cmd/berth")
	build.Stderr, build.Env = os.Stderr, append(os.Environ(), "CGO_ENABLED=0")
	if err := build.Run(); err != nil {
		return fmt.Errorf("building berth: %w", err)
	}
	return nil
}

// writePage writes the chart, and the results into their section of the page.
func writePage(o options, results []*result, load string) error {
	if err := os.WriteFile(o.chart, barChart(results), 0o644); err != nil {
		return err
	}
	link, err := filepath.Rel(filepath.Dir(o.page), o.chart)
	if err != nil {
		return err
	}
	return replaceSection(o.page, "bench", resultSection(results, filepath.ToSlash(link), load))
}

// runCheckOrWorkload measures a workload on all targets, or runs a check on berth alone. The result
// of a check is nil.
func runCheckOrWorkload(name string, all []*target, engine string, o options) (*result, error) {
	switch name {
	case "disconnects":
		return nil, checkDisconnects(all[1], engine)
	case "connections":
		return nil, checkConnections(all[1])
	case "soak":
		return nil, checkSoak(all[1], time.Duration(o.minutes*float64(time.Minute)))
	}
	w, err := findWorkload(name)
	if err != nil {
		return nil, err
	}
	return w.compareTargets(all, o.rounds, o.duration)
}
