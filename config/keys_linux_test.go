package config

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// Sixteen times the keys may take little more than sixteen times the CPU time of this thread;
// comparing each key with all others would take 256 times.
func TestParseKeysTakesLinearTime(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	few, many := timeToReadKeys(t, 4000), timeToReadKeys(t, 64000)
	if many > 64*few {
		t.Errorf("4,000 keys take %v, 64,000 take %v", few, many)
	}
}

// timeToReadKeys returns the least CPU time of three runs that read n keys from parsed YAML.
func timeToReadKeys(t *testing.T, n int) time.Duration {
	t.Helper()
	list := &node{kind: sequence, name: "keys"}
	for i := range n {
		name := (&node{kind: text, text: fmt.Sprint("team-", i)}).withName("name", position{})
		hash := (&node{kind: text, text: fmt.Sprintf("%064x", i+1)}).withName("sha256", position{})
		list.nodes = append(list.nodes, &node{kind: mapping, nodes: []*node{name, hash}})
	}
	least := time.Hour
	for range 3 {
		r := newReader(Checks{}, nil)
		began := threadTime(t)
		r.keys(list)
		least = min(least, threadTime(t)-began)
		if len(r.problems) > 0 || len(r.config.Auth.Keys) != n {
			t.Fatalf("%d of %d keys, with %v", len(r.config.Auth.Keys), n, r.problems)
		}
	}
	return least
}

// threadTime returns the CPU time of this thread.
func threadTime(t *testing.T) time.Duration {
	const threadCPU = 3 // CLOCK_THREAD_CPUTIME_ID
	var now syscall.Timespec
	if _, _, errno := syscall.Syscall(syscall.SYS_CLOCK_GETTIME, threadCPU, uintptr(unsafe.Pointer(&now)), 0); errno != 0 {
		t.Fatal(errno)
	}
	return time.Duration(now.Nano())
}

func BenchmarkParseManyKeys(b *testing.B) {
	for _, n := range []int{1000, 20000} {
		var file strings.Builder
		file.WriteString("llm_configs: [{model_loading_config: {model_id: m}, simulated: {}}]\nauth:\n  keys:\n")
		for i := range n {
			fmt.Fprintf(&file, "    - {name: team-%d, key: sk-%d, models: [m]}\n", i, i)
		}
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, _, err := Parse([]byte(file.String()), "berth.yaml", Checks{}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*n), "µs/key")
		})
	}
}
