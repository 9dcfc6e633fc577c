package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth/llmserver/simulated"
	"berth/routers/replay"
)

// replayFlags are the flags of berth replay.
type replayFlags struct {
	trace, model       string
	format, plot       string
	policies           []string
	options            replay.Options
	limit, seeds       int
	textBlock          int
	sessionGap         time.Duration
	added              []time.Duration
	removed, restarted []string
}

func replayCommand() *cobra.Command {
	var f replayFlags
	f.options.Cost = simulated.Cost{
		PrefillTokensPerSecond: 8000,
		DecodeStep:             6 * time.Millisecond,
		DecodeStepPerRequest:   350 * time.Microsecond,
	}
	cmd := &cobra.Command{
		Use:   "replay --trace FILE [--policy NAME,…]",
		Short: "Run recorded traffic through routing policies in virtual time and compare them",
		Long: `Run recorded traffic through routing policies in virtual time and compare them.

Policies, gates and the queue are those that serve requests. Each replica is the simulated engine: 8000 prompt tokens
per second, and 6 ms + 0.35 ms per running request for one token of every response.
Trace formats: Mooncake, WEKA sessions, LMCache, token IDs, arrivals as CSV (Azure, BurstGPT) and berth's own decision
log, plain or gzip. A turn of a session arrives at its recorded time, but not before the response to the previous turn
and the recorded pause after it. Sessions whose times count from their own start arrive as a Poisson process.
A replica that is removed or restarted finishes its requests; the new process starts with an empty cache.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt)
			defer stop()
			progress := io.Discard
			if info, err := os.Stderr.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
				progress = os.Stderr
			}
			return f.run(ctx, cmd.OutOrStdout(), progress)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.trace, "trace", "", "file with the recorded traffic")
	flags.StringVar(&f.model, "model", "", "model to replay, if a decision log has several")
	flags.IntVar(&f.textBlock, "text-block-bytes", replay.TextBlock, "size of a prefix cache block in bytes, for traces with text")
	flags.IntVar(&f.options.PolicyBlock, "policy-block", 1, "number of trace blocks per block that policies see")
	flags.StringSliceVar(&f.policies, "policy", []string{"all"}, "names of the policies to compare")
	flags.IntVar(&f.options.Replicas, "replicas", 8, "number of replicas")
	flags.IntVar(&f.options.MaxOngoing, "max-ongoing-requests", 64, "slots per replica")
	flags.IntVar(&f.options.KVTokens, "kv-cache-tokens", 0, "size of a replica's KV cache in tokens; 0 for no limit")
	flags.Float64Var(&f.options.Speed, "speed", 1, "factor by which arrivals are faster than recorded")
	flags.IntVar(&f.limit, "limit", 0, "number of requests to replay; 0 for all")
	flags.Uint64Var(&f.options.Seed, "seed", 1, "seed of all random numbers")
	flags.IntVar(&f.seeds, "seeds", 1, "number of seeds, odd; the medians are reported")
	flags.DurationVar(&f.sessionGap, "session-gap", 10*time.Second, "mean time between session starts, for traces without them")
	flags.DurationSliceVar(&f.added, "add", nil, "add a replica after this time, as in 900s")
	flags.StringSliceVar(&f.removed, "remove", nil, "remove a replica, as in b@900s; replicas are named a, b, c and so on")
	flags.StringSliceVar(&f.restarted, "restart", nil, "restart a replica, as in b@900s")
	flags.StringVar(&f.format, "format", "table", "output format: table or json")
	flags.StringVar(&f.plot, "plot", "", "also write a plot to this SVG file")
	cmd.MarkFlagRequired("trace")
	return cmd
}

// validate reports the first invalid flag, and fills in the events.
func (f *replayFlags) validate() error {
	o := &f.options
	switch {
	case o.Replicas < 1:
		return errors.New("--replicas must be at least 1")
	case o.MaxOngoing < 1:
		return errors.New("--max-ongoing-requests must be at least 1")
	case !(o.Speed > 0):
		return errors.New("--speed must be above 0")
	case f.textBlock < 4:
		return errors.New("--text-block-bytes must be at least 4")
	case o.PolicyBlock < 1:
		return errors.New("--policy-block must be at least 1")
	case f.seeds < 1 || f.seeds%2 == 0:
		return errors.New("--seeds must be an odd number")
	case f.format != "table" && f.format != "json":
		return fmt.Errorf("--format must be table or json, not %q", f.format)
	}
	for _, at := range f.added {
		o.Events = append(o.Events, replay.Event{At: at, Kind: replay.Add})
	}
	for kind, changes := range map[replay.Kind][]string{replay.Remove: f.removed, replay.Restart: f.restarted} {
		for _, change := range changes {
			name, when, _ := strings.Cut(change, "@")
			at, err := time.ParseDuration(when)
			if err != nil {
				return fmt.Errorf("--%s must be of the form b@900s, not %q", kind, change)
			}
			o.Events = append(o.Events, replay.Event{At: at, Kind: kind, Replica: name})
		}
	}
	slices.SortStableFunc(o.Events, func(a, b replay.Event) int {
		return cmp.Or(cmp.Compare(a.At, b.At), strings.Compare(string(a.Kind), string(b.Kind)))
	})
	return nil
}

func (f *replayFlags) run(ctx context.Context, out, progress io.Writer) error {
	if err := f.validate(); err != nil {
		return err
	}
	policies, err := replay.FindPolicies(f.policies...)
	if err != nil {
		return err
	}
	runtime.MemProfileRate = 0 // this process serves no profiles
	growInHugePages(256 << 20)
	debug.SetGCPercent(400) // the trace is most of the heap and stays alive
	trace, err := replay.Open(f.trace, f.textBlock)
	if err != nil {
		return err
	}
	if trace, err = trace.ForModel(f.model); err != nil {
		return err
	}
	bySeed := make([][]*replay.Result, len(policies))
	for seed := range uint64(f.seeds) {
		o := f.options
		o.Seed += seed
		arranged := trace.ScheduleSessions(o.Seed, f.sessionGap).Limit(f.limit)
		for i, policy := range policies {
			o.Progress = func(finished, all int) {
				fmt.Fprintf(progress, "\r\x1b[K%s, seed %d: %d %%", policy.Name, o.Seed, 100*finished/all)
			}
			result, err := replay.Run(ctx, arranged, policy, o)
			fmt.Fprint(progress, "\r\x1b[K")
			if err != nil {
				return err
			}
			bySeed[i] = append(bySeed[i], result)
		}
	}
	var results []*replay.Result
	for _, each := range bySeed {
		results = append(results, replay.Median(each))
	}
	return f.report(out, results)
}

// report writes the results in the requested format.
func (f *replayFlags) report(out io.Writer, results []*replay.Result) error {
	if f.plot != "" {
		file, err := os.Create(f.plot)
		if err != nil {
			return err
		}
		if err := errors.Join(replay.Plot(file, f.title(), results), file.Close()); err != nil {
			return err
		}
	}
	if f.format == "table" {
		return replay.Table(out, results)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(results)
}

// title returns the title of the plot.
func (f *replayFlags) title() string {
	name, _, _ := strings.Cut(filepath.Base(f.trace), ".")
	title := fmt.Sprintf("%s on %d replicas", name, f.options.Replicas)
	if f.options.Speed != 1 {
		title += fmt.Sprintf(", %g times as fast", f.options.Speed)
	}
	if f.options.KVTokens > 0 {
		title += fmt.Sprintf(", %d tokens of KV cache each", f.options.KVTokens)
	}
	return title
}
