package replay

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// whole reports whether the bars are tested with whole traces and five seeds, which takes minutes:
// BERTH_BARS=all go test -run Bars -v -timeout 0 ./routers/replay
//
// It is evaluated by a test and not at the start of the package, so that go test records the
// dependency on the environment.
var whole = sync.OnceValue(func() bool { return os.Getenv("BERTH_BARS") == "all" })

// traces returns the directory of recorded traces, which are too large for the repository.
// docs/traces.md names their origin.
var traces = sync.OnceValue(func() string { return cmp.Or(os.Getenv("BERTH_TRACES"), "../../../shared/traces") })

const (
	conversation = "mooncake_conversation.jsonl.gz"
	coding       = "weka_claude_code_sessions.jsonl.gz"
	miniswe      = "lmcache_agent_miniswe.jsonl.gz"
	taubench     = "lmcache_agent_taubench.jsonl.gz"
	sharegpt     = "sharegpt_token_ids_qwen3_300.jsonl.gz"
	azure        = "azure_llm_2023_conv.csv.gz"
)

var opened sync.Map // traces by name

func recorded(t testing.TB, name string) *Trace {
	t.Helper()
	if trace, ok := opened.Load(name); ok {
		return trace.(*Trace)
	}
	trace, err := Open(filepath.Join(traces(), name), TextBlock)
	if errors.Is(err, fs.ErrNotExist) {
		const absent = "%s is not in %s; docs/traces.md says where to get the traces, and BERTH_TRACES where they are"
		if os.Getenv("BERTH_E2E") == "all" {
			t.Fatalf("BERTH_E2E=all: "+absent, name, traces())
		}
		t.Skipf(absent, name, traces())
	}
	if err != nil {
		t.Fatal(err)
	}
	opened.Store(name, trace)
	return trace
}

// results holds the results of policies by name.
type results map[string]*Result

// replayed replays the trace of a name, at the speed that gives o.Replicas their usual load, with
// the named policies or all. It returns the medians of five seeds of the whole trace, or one seed
// of its start.
func replayed(t *testing.T, name string, limit int, o Options, policies ...string) results {
	t.Helper()
	trace, seeds := recorded(t, name), uint64(1)
	if whole() {
		limit, seeds = 0, 5
	}
	o.Speed *= float64(o.Replicas) / 8
	if policies == nil {
		policies = []string{"all"}
	}
	found, err := FindPolicies(policies...)
	if err != nil {
		t.Fatal(err)
	}
	each, medians := make(results), make([]*Result, 0, len(found))
	for _, p := range found {
		var bySeed []*Result
		for seed := range seeds {
			o.Seed = 1 + seed
			r, err := Run(t.Context(), trace.ScheduleSessions(o.Seed, sessionGap).Limit(limit), p, o)
			if err != nil {
				t.Fatal(err)
			}
			bySeed = append(bySeed, r)
		}
		each[p.Name] = Median(bySeed)
		medians = append(medians, each[p.Name])
	}
	var table bytes.Buffer
	Table(&table, medians)
	t.Logf("%s, %d replicas\n%s", name, o.Replicas, table.String())
	return each
}

// some returns these policies, or nil for all if the bars are tested with whole traces.
func some(policies ...string) []string {
	if whole() {
		return nil
	}
	return policies
}

// sessionGap is the mean time between starts of sessions that have no times of their own.
const sessionGap = 10 * time.Second

const (
	roundRobin = "RoundRobinRouter"
	powerOfTwo = "PowerOfTwoChoicesRouter"
	hash       = "ConsistentHashRouter"
	prefix     = "PrefixCacheAffinityRouter"
)

// least returns the least of a figure over all policies but the two with affinity.
func (r results) least(figure func(*Result) float64) float64 {
	least := math.Inf(1)
	for name, other := range r {
		if name != hash && name != prefix {
			least = min(least, figure(other))
		}
	}
	return least
}

func mean(r *Result) float64 { return r.TTFTMean }
func p90(r *Result) float64  { return r.TTFT90 }
func p99(r *Result) float64  { return r.TTFT99 }

// holdsTimes fails unless prefix affinity's times are within 5 % of the best other policy's.
func (r results) holdsTimes(t *testing.T) {
	t.Helper()
	mine := r[prefix]
	figures := map[string]func(*Result) float64{"mean": mean, "p90": p90}
	if mine.Requests >= 5000 {
		figures["p99"] = p99
	}
	for name, figure := range figures {
		if got, best := figure(mine), r.least(figure); got > 1.05*best {
			t.Errorf("the %s time to the first token is %.0f ms; the best other one is %.0f", name, got, best)
		}
	}
}

func TestReplayBarsOfConversations(t *testing.T) {
	recorded(t, conversation) // or the test passes while all of its parts are skipped
	for n, most := range map[int]float64{4: 1.15, 8: 1.15, 16: 1.25} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			r := replayed(t, conversation, 1200, fleetOf(n), some(prefix, roundRobin, powerOfTwo, "tree", "scored-blocks")...)
			if got := r[prefix]; got.HitRate < 0.97*got.Ceiling || got.MaxOverMean > most {
				t.Errorf("hit rate %.3f of %.3f, busiest over mean %.2f", got.HitRate, got.Ceiling, got.MaxOverMean)
			}
			if n == 8 && 1.25*r[prefix].TTFTMean > min(r[roundRobin].TTFTMean, r[powerOfTwo].TTFTMean) {
				t.Error("the mean time to the first token is not 1.25 times better than round robin and power of two")
			}
			r.holdsTimes(t)
		})
	}
}

func TestReplayBarsOfConversationsWithLittleMemory(t *testing.T) {
	o := fleetOf(8)
	o.KVTokens = 6000 * 512
	if !whole() {
		o.KVTokens /= 4 // the part of the trace has fewer blocks
	}
	r := replayed(t, conversation, 1200, o, some(prefix, "tree", "scored-blocks", "longest-match")...)
	if got, best := r[prefix], -r.least(func(r *Result) float64 { return -r.HitRate }); got.HitRate < best || got.MaxOverMean > 1.15 {
		t.Errorf("hit rate %.4f, the best other one %.4f, busiest over mean %.2f", got.HitRate, best, got.MaxOverMean)
	}
	r.holdsTimes(t)
}

func TestReplayBarsOfSaturatedQueue(t *testing.T) {
	o := fleetOf(8)
	o.Speed = 2
	free := replayed(t, conversation, 1200, o, prefix)[prefix]
	o.MaxOngoing = 8
	capped := replayed(t, conversation, 1200, o, prefix)[prefix]
	if capped.WaitMax == 0 || capped.HitRate < 0.85*free.HitRate {
		t.Errorf("hit rate %.3f with waits of up to %.0f ms; %.3f without", capped.HitRate, capped.WaitMax, free.HitRate)
	}
}

func TestReplayBarsOfCodingSessions(t *testing.T) {
	r := replayed(t, coding, 300, fleetOf(8), some(prefix, hash, "scored-blocks")...)
	for name, most := range map[string]float64{prefix: 1.30, hash: 1.45} {
		got := r[name]
		if got.HitRate < 0.98*got.Ceiling || whole() && got.MaxOverMean > most { // a few sessions do not spread evenly
			t.Errorf("%s: hit rate %.3f of %.3f, busiest over mean %.2f", name, got.HitRate, got.Ceiling, got.MaxOverMean)
		}
	}
	r.holdsTimes(t)
}

func TestReplayBarsOfAgents(t *testing.T) {
	for _, name := range []string{miniswe, taubench} {
		for _, n := range []int{4, 8} {
			r := replayed(t, name, 0, fleetOf(n))
			if got := r[prefix]; got.HitRate < 0.97*got.Ceiling {
				t.Errorf("%s on %d: hit rate %.3f of %.3f", name, n, got.HitRate, got.Ceiling)
			}
			r.holdsTimes(t)
		}
	}
}

// Where prompts have little or nothing in common, affinity must cost nothing.
func TestReplayBarsOfPromptsWithLittleInCommon(t *testing.T) {
	for _, name := range []string{sharegpt, azure} {
		for _, n := range []int{4, 8, 16} {
			if n != 8 && !whole() {
				continue
			}
			r := replayed(t, name, 3000, fleetOf(n), some(prefix, roundRobin, powerOfTwo, "least-requests")...)
			if got, best := r[prefix].TTFTMean, min(r[roundRobin].TTFTMean, r[powerOfTwo].TTFTMean); got > 1.02*best {
				t.Errorf("%s on %d: the mean time to the first token is %.1f ms; round robin or power of two have %.1f", name, n, got, best)
			}
			r.holdsTimes(t)
		}
	}
}

// BenchmarkReplay reports the prompt blocks that are replayed per second of CPU time.
func BenchmarkReplay(b *testing.B) {
	for _, name := range []string{conversation, coding} {
		b.Run(name, func(b *testing.B) {
			trace := recorded(b, name).ScheduleSessions(1, sessionGap).Limit(12_000)
			blocks := 0
			for i := range trace.Requests {
				blocks += trace.Requests[i].Prompt / trace.BlockTokens
			}
			began := cpu(b)
			for b.Loop() {
				mustRun(b, trace, prefix, fleetOf(8))
			}
			b.ReportMetric(float64(blocks*b.N)/float64((cpu(b)-began).Microseconds()), "Mblocks/cpu-s")
		})
	}
}

// cpu returns the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
