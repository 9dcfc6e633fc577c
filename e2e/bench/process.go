package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc. USER_HZ is 100 on all architectures that Go
// supports.
const clockTick = 10 * time.Millisecond

// usage is the CPU time and memory of a process and its descendants.
type usage struct {
	cpu      time.Duration // user and system
	resident int64         // bytes
}

// processUsage returns the usage of the process tree with the given root, from /proc.
func processUsage(root int) (u usage, err error) {
	parents, fields := make(map[int]int), make(map[int][]string)
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return u, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		_, rest, _ := strings.Cut(string(text), ") ") // the name may contain any character
		fields[pid] = strings.Fields(rest)
		parents[pid], _ = strconv.Atoi(fields[pid][1])
	}
	if fields[root] == nil {
		return u, fmt.Errorf("/proc has no process %d", root)
	}
	for pid, f := range fields {
		ancestor := pid
		for ancestor > 1 && ancestor != root {
			ancestor = parents[ancestor]
		}
		if ancestor != root {
			continue
		}
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		pages, _ := strconv.ParseInt(f[21], 10, 64)
		u.cpu += time.Duration(user+system) * clockTick
		u.resident += pages * int64(os.Getpagesize())
	}
	return u, nil
}

// loadAverage returns the load average of the last minute. Before the first measurement, other
// processes cause it.
func loadAverage() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(text), " ")
	return load, err
}
