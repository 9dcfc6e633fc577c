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

// options are what the command line says.
type options struct {
	work, berth, against, readme, picture string
	rounds                                int
	took                                  time.Duration
	minutes                               float64
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
	flag.StringVar(&o.work, "work", strings.Join(names, ","), "what to do, and any of leave, crowd and soak")
	flag.StringVar(&o.berth, "berth", "", "the binary to measure; built from ./cmd/berth if empty")
	flag.StringVar(&o.against, "against", "", "another binary of berth to measure beside it")
	flag.StringVar(&o.readme, "readme", "", "a file that has a place for the results")
	flag.StringVar(&o.picture, "picture", "e2e/bench/result.svg", "where -readme puts the picture")
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
	if o.readme == "" || len(results) == 0 {
		return nil
	}
	if err := os.WriteFile(o.picture, picture(results), 0o644); err != nil {
		return err
	}
	return rewrite(o.readme, section(results, o.picture, load))
}

// do does one work. What must hold is asked of berth alone, and gives no result.
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
