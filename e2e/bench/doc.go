// Command bench measures what berth costs, beside HAProxy and nginx where they are installed:
//
//	go run ./e2e/bench                          # every work, 7 rounds of 2 s, in about 15 minutes
//	go run ./e2e/bench -work events -rounds 3   # a quick look
//	go run ./e2e/bench -against ./old           # another berth's binary beside it: before and after
//	go run ./e2e/bench -readme README.md        # and write the result where the README has its place for it
//	go run ./e2e/bench -work leave,crowd        # what must hold: clients that leave, 5,000 connections
//	go run ./e2e/bench -work soak -minutes 10   # memory and goroutines stay flat; 30 minutes for a release
//
// Everything is on loopback and bounded. An engine, a process of its own, answers at once or in events at their time;
// answers depend on the request alone, and each is compared byte for byte. Every proxy forwards to that one engine. The rounds of
// the targets are interleaved, and figures are medians over the rounds.
//
// The figure to compare is the CPU time of the proxy, user and system, from the kernel's accounting of its processes,
// divided by the requests or events that came out of it. Client, engine and proxy share the machine, so that
// throughput and latency mean something only beside each other. It needs Linux's /proc.
package main
