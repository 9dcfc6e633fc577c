package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of CPU times in /proc: USER_HZ is 100 wherever Go runs.
const tick = 10 * time.Millisecond

// usage is what the kernel says of a process and its descendants.
type usage struct {
	cpu      time.Duration // user and system
	resident int64         // bytes
}

// measure reads the usage of a tree of processes.
func measure(root int) (u usage, err error) {
	parents, fields := make(map[int]int), make(map[int][]string)
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return u, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		_, rest, _ := strings.Cut(string(text), ") ") // the name before may hold anything
		fields[pid] = strings.Fields(rest)
		parents[pid], _ = strconv.Atoi(fields[pid][1])
	}
	if fields[root] == nil {
		return u, fmt.Errorf("/proc knows no process %d", root)
	}
	for pid, f := range fields {
		of := pid
		for of > 1 && of != root {
			of = parents[of]
		}
		if of != root {
			continue
		}
		user, _ := strconv.ParseInt(f[11], 10, 64)
		system, _ := strconv.ParseInt(f[12], 10, 64)
		pages, _ := strconv.ParseInt(f[21], 10, 64)
		u.cpu += time.Duration(user+system) * tick
		u.resident += pages * int64(os.Getpagesize())
	}
	return u, nil
}

// others is the machine's load average, before anything is measured that of other work.
func others() (string, error) {
	text, err := os.ReadFile("/proc/loadavg")
	load, _, _ := strings.Cut(string(text), " ")
	return load, err
}
