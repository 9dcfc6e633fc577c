package ingress

import (
	"math"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"

	"berth/config"
)

func TestMemoryLimitIsLowestOfAll(t *testing.T) {
	const gib = 1 << 30
	tree := func(files ...string) fstest.MapFS {
		fsys := fstest.MapFS{"proc/meminfo": {Data: []byte("MemFree: 1 kB\nMemTotal:       8388608 kB\n")}}
		for i := 0; i < len(files); i += 2 {
			fsys[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
		}
		return fsys
	}
	for name, row := range map[string]struct {
		root    fstest.MapFS
		runtime int64 // GOMEMLIMIT
		want    int64
	}{
		"nothing is known":    {fstest.MapFS{}, math.MaxInt64, math.MaxInt64},
		"the machine's":       {tree(), math.MaxInt64, 8 * gib},
		"GOMEMLIMIT":          {tree(), gib, gib},
		"version 2":           {tree("proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max", "419430400\n"), math.MaxInt64, 400 << 20},
		"version 2, no limit": {tree("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "max\n"), math.MaxInt64, 8 * gib},
		"a group above":       {tree("proc/self/cgroup", "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max", "max\n", "sys/fs/cgroup/a/memory.max", "1073741824\n"), math.MaxInt64, gib},
		"a container's root":  {tree("proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "1073741824\n"), math.MaxInt64, gib},
		"outside of the tree": {tree("proc/self/cgroup", "0::/../other\n", "sys/fs/cgroup/memory.max", "1073741824\n"), math.MaxInt64, gib},
		"version 1": {tree("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/1\n", "sys/fs/cgroup/memory/docker/1/memory.limit_in_bytes", "1073741824\n"),
			math.MaxInt64, gib},
		"version 1 in a container": {tree("proc/self/cgroup", "4:memory,hugetlb:/docker/1\n0::/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "1073741824\n"),
			math.MaxInt64, gib},
		"version 1, no limit": {tree("proc/self/cgroup", "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"), math.MaxInt64, 8 * gib},
		"the least of them":   {tree("proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "2147483648\n"), gib, gib},
	} {
		before := debug.SetMemoryLimit(row.runtime)
		got := memoryLimit(row.root)
		debug.SetMemoryLimit(before)
		if got != row.want {
			t.Errorf("%s: %d, want %d", name, got, row.want)
		}
	}
}

func TestMemoryBudgetFollowsMemoryLimit(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(64 << 20))
	c := configured(modelOn("m", upstream(t, ok)))
	c.HTTP.MaxBufferedBytes, c.HTTP.MaxBodyBytes = 0, 64<<20
	f := serveConfig(t, c)
	if limit := f.metric("berth_buffered_bytes_limit"); limit != 16<<20 {
		t.Errorf("the limit is %v", limit)
	}
	if log := f.log.take(); !strings.Contains(log, "max_body_bytes") {
		t.Errorf("logged:\n%s", log)
	}
	wantError(t, f.post("/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("x", 17<<20)+`"}`), 503, "request_memory_exhausted", "")
	if r := f.post("/v1/completions", `{"model":"m","prompt":"`+strings.Repeat("x", 3<<20)+`"}`); r.body != "ok" {
		t.Errorf("got %d %s", r.StatusCode, r.body)
	}
	own := *c
	own.HTTP.MaxBufferedBytes = 128 << 20
	if err := f.Apply(&own); err != nil {
		t.Fatal(err)
	}
	if limit := f.metric("berth_buffered_bytes_limit"); limit != 128<<20 {
		t.Errorf("the configured limit is %v", limit)
	}
}

func TestMemoryBudgetIsCheckedAgainstLimit(t *testing.T) {
	text := "http: {max_buffered_bytes: 200000000}\nllm_configs:\n- {model_loading_config: {model_id: m}, simulated: {}}\n"
	for most, want := range map[int64]int{0: 0, 200_000_000: 0, 100_000_000: 1} {
		_, warnings, err := config.Parse([]byte(text), "berth.yaml", config.Checks{MostBuffered: most})
		if err != nil || len(warnings) != want {
			t.Errorf("with %d bytes: %v, %v", most, warnings, err)
		}
		if want > 0 && !strings.Contains(warnings[0].String(), "berth.yaml:1:28: max_buffered_bytes (200000000)") {
			t.Errorf("warned %s", warnings[0])
		}
	}
}
