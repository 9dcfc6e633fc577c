// Command bench measures the CPU time, latency and memory of berth, HAProxy and nginx (if
// installed) and, on request, of other LLM routers:
//
//	go run ./e2e/bench                          # all workloads, 7 rounds of 2 s, about 15 minutes
//	go run ./e2e/bench -work events -rounds 3   # one workload, fewer rounds
//	go run ./e2e/bench -against ./old           # compare with another berth binary
//	go run ./e2e/bench -routers                 # add vllm-router and sglang-router, from PyPI
//	go run ./e2e/bench -work overload -time 12s  # goodput against offered load, impatient clients
//	go run ./e2e/bench -page docs/performance.md  # rewrite the results section of a page
//	go run ./e2e/bench -work disconnects,connections  # checks: 200 disconnects, 5,000 connections
//	go run ./e2e/bench -work soak -minutes 10   # check: memory and goroutines stay flat
//	go run ./e2e/bench -work scenes -page docs/operations.md  # one of four engines fails behind other routers
//
// Everything runs on loopback. The engine is a separate process that responds at once or sends
// events at given times. Its responses depend only on the request, and the client compares every
// byte. All proxies forward to the same engine. Rounds are interleaved between targets, and figures
// are medians over the rounds.
//
// The figure to compare is the CPU time of the proxy (user and system time of its process tree)
// per delivered request or event. Client, engine and proxy share the machine, so throughput and
// latency can be compared only within one run. Linux's /proc is required.
package main
