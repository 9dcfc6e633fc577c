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
)

// options are the command line's.
type options struct {
	work, berth, against, page, picture string
	routers                             bool
	rounds                              int
	took                                time.Duration
	minutes                             float64
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "engine" {
		exit(runEngine())
	}
	var o options
	var names []string
	for _, w := range works {
		names = append(names, w.name)
	}
	flag.StringVar(&o.work, "work", strings.Join(names, ","), "the kinds of load to measure, and any of the checks leave, crowd and soak")
	flag.StringVar(&o.berth, "berth", "", "the binary to measure; built from ./cmd/berth if empty")
	flag.StringVar(&o.against, "against", "", "another binary of berth to measure beside the first")
	flag.BoolVar(&o.routers, "routers", false, "measure vllm-router and sglang-router too; they are installed from PyPI into the user's cache directory")
	flag.StringVar(&o.page, "page", "", "a Markdown file with a section for the results, to be rewritten")
	flag.StringVar(&o.picture, "picture", "docs/cost.svg", "where -page puts the picture")
	flag.IntVar(&o.rounds, "rounds", 7, "rounds of each target")
	flag.DurationVar(&o.took, "time", 2*time.Second, "how long a round is measured")
	flag.Float64Var(&o.minutes, "minutes", 10, "how long a soak takes")
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
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		return errors.New("CPU times are read from Linux's /proc, which is not there")
	}
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if o.berth == "" {
		o.berth = filepath.Join(dir, "berth")
		build := exec.Command("go", "build", "-o", o.berth, "berth/cmd/berth")
		build.Stderr, build.Env = os.Stderr, append(os.Environ(), "CGO_ENABLED=0")
		if err := build.Run(); err != nil {
			return fmt.Errorf("building berth: %w", err)
		}
	}
	load, err := others()
	if err != nil {
		return err
	}
	engine, stop, err := startEngine()
	if err != nil {
		return err
	}
	defer stop()
	all, err := targets(dir, engine, o.berth, o.against)
	if err != nil {
		return err
	}
	if o.routers {
		added, err := routerTargets(engine)
		if err != nil {
			return err
		}
		all = append(all, added...)
	}
	var results []*result
	for name := range strings.SplitSeq(o.work, ",") {
		r, err := do(name, all, engine, o)
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
	if err := os.WriteFile(o.picture, picture(results), 0o644); err != nil {
		return err
	}
	link, err := filepath.Rel(filepath.Dir(o.page), o.picture)
	if err != nil {
		return err
	}
	return rewrite(o.page, section(results, filepath.ToSlash(link), load))
}

// do measures one kind of load on all targets, or runs one check on berth alone, which has no result.
func do(name string, all []*target, engine string, o options) (*result, error) {
	switch name {
	case "leave":
		return nil, leave(all[1], engine)
	case "crowd":
		return nil, crowd(all[1])
	case "soak":
		return nil, soak(all[1], time.Duration(o.minutes*float64(time.Minute)))
	}
	w, err := find(name)
	if err != nil {
		return nil, err
	}
	return w.compare(all, o.rounds, o.took)
}
