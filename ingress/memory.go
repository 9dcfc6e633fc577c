package ingress

import (
	"bytes"
	"io/fs"
	"math"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"

	"berth/config"
)

// maxDefaultBufferedBytes bounds the default budget for request bodies. This bound applies where
// memory is ample or of unknown size.
const maxDefaultBufferedBytes = 1 << 30

// AffordableBufferedBytes returns the number of bytes of request bodies that this process can hold
// without running out of memory: a quarter of the memory limit. The rest is for streams, for the
// growth of the heap between garbage collections and for pooled buffers.
func AffordableBufferedBytes() int64 { return memoryLimit(os.DirFS("/")) / 4 }

// DefaultBufferedBytes returns the default budget for request bodies, in bytes.
func DefaultBufferedBytes() int64 { return min(AffordableBufferedBytes(), maxDefaultBufferedBytes) }

// memoryLimit returns the number of bytes of memory available to this process: the lowest of
// GOMEMLIMIT, the cgroup limits and the machine's memory, as far as known. root is the root file
// system.
func memoryLimit(root fs.FS) int64 {
	limit := debug.SetMemoryLimit(-1)
	if n := machineMemory(root); n > 0 {
		limit = min(limit, n)
	}
	text, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return limit
	}
	for line := range strings.Lines(string(text)) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		switch {
		case id == "0" && controllers == "": // version 2
			limit = min(limit, cgroupLimit(root, "sys/fs/cgroup", group, "memory.max"))
		case strings.Contains(","+controllers+",", ",memory,"):
			limit = min(limit, cgroupLimit(root, "sys/fs/cgroup/memory", group, "memory.limit_in_bytes"))
		}
	}
	return limit
}

// cgroupLimit returns the lowest limit of a cgroup and its ancestors. A container may see the full
// name of its cgroup but only a part of the tree, mounted at mount. The walk upwards ends at the
// mount, so the container's own limit is found, too.
func cgroupLimit(root fs.FS, mount, group, file string) int64 {
	limit := int64(math.MaxInt64)
	for group = path.Clean("/" + group); ; group = path.Dir(group) {
		if text, err := fs.ReadFile(root, path.Join(mount, group, file)); err == nil {
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && n > 0 { // "max" does not parse: no limit
				limit = min(limit, n)
			}
		}
		if group == "/" {
			return limit
		}
	}
}

// machineMemory returns the machine's memory in bytes; 0 if unknown.
func machineMemory(root fs.FS) int64 {
	text, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseInt(f[1], 10, 53)
			return kib << 10
		}
	}
	return 0
}

// bodyBudgetBytes returns the budget for request bodies of a configuration.
func bodyBudgetBytes(c *config.Config) int64 {
	if c.HTTP.MaxBufferedBytes > 0 {
		return c.HTTP.MaxBufferedBytes
	}
	return DefaultBufferedBytes()
}
