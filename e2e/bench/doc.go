// Command bench measures what berth costs, beside HAProxy and nginx where they are installed, and on request beside the routers that users
// would pick instead:
//
//	go run ./e2e/bench                          # every kind of load, 7 rounds of 2 s, in about 15 minutes
//	go run ./e2e/bench -work events -rounds 3   # a quick look
//	go run ./e2e/bench -against ./old           # another binary of berth beside it: before and after
//	go run ./e2e/bench -routers                 # vllm-router and sglang-router too, installed from PyPI
//	go run ./e2e/bench -page docs/performance.md  # and rewrite the section of that page that has the results
//	go run ./e2e/bench -work leave,crowd        # checks: clients that disconnect, 5,000 connections
//	go run ./e2e/bench -work soak -minutes 10   # memory and goroutines stay flat; 30 minutes for a release
//
// Everything runs on loopback. The engine is a process of its own that responds at once, or with events at given times. Its
// responses depend on the request alone, and the client compares each byte. Every proxy forwards to that one engine. The
// rounds of the targets are interleaved, and figures are medians over the rounds.
//
// The figure to compare is the CPU time of the proxy, user and system, from the kernel's accounting of its processes,
// divided by the requests or events that it delivered. Client, engine and proxy share the machine, so throughput and
// latency can be compared only within one run. It needs Linux's /proc.
package main
