// Package streaming passes the answer of an upstream server on to a client, byte for byte and as it comes.
//
// An event stream is written in whole events, one write and one flush for each upstream read; an answer of known length
// is left to the server's own buffering. The package knows nothing of models, replicas or retries: it reports which side
// broke and whether there is still a way back, and its caller decides.
//
// # Where an event's microseconds go
//
// Of the CPU time of an event that comes by itself, as sampled by perf in
//
//	go run ./e2e/bench -work events & perf record -F 4000 -g -p "$(pgrep -n berth)" -- sleep 4
//
// (shares of a whole of some 20 µs on two cores of a Xeon that had other work to do):
//
//	write and flush            34 %   the system call alone 22, most of it the kernel handing the bytes to the client's
//	                                  socket; net/http's and gin's writers 9
//	read                       29 %   two system calls 13: Go reads before it waits, and that first read finds nothing;
//	                                  package net and the poller around them 10, taking the chunked coding apart 2
//	scheduler                  13 %   of which the poller's system call 4
//	the runtime's monitor      10 %   woken whenever all was idle, so the less the more there is to do
//	tap                         4 %   tokens, usage and gaps
//	finding ends of events      1 %
//	begin and end of requests   4 %
//	watch of the write          0 %   two additions; its timer fires twice a minute
//
// Nothing is allocated per event: TestAnEventIsPassedWithoutAllocation.
//
// What took time and went: net/http's transport, whose two goroutines per connection each event changed between (package
// http1); a copy buffer of 32 KiB per stream; a write deadline per write, which is two changes of a timer (see watch); a flush of
// the header by itself, which is a write more per answer, as is the flush of an answer of known length; the watch's timer where an answer is short.
// What was tried and brought nothing that could be measured: putting events into the chunked coding here and writing them past net/http,
// one processor instead of two, a build with a profile. To wait before the first read would save a system call, but
// the end of a connection that comes together with the last bytes would not be seen: Go has it in an edge that is gone by then.
//
// Before and after the round of work on small requests, in one run of go run ./e2e/bench -against OLD:
//
//	                                    before          after           after / HAProxy
//	small request                       87.6 µs         64.8 µs         2.5
//	event of 200 streams                24.1            21.4            1.36
//	event of 1,000 streams               7.7             7.5            1.28
//	event in bulk                        1.7             1.6            1.33
//	memory of each of 1,000 streams     69 KiB          54 KiB
//
// The machine was busy with other work (a load of 13 on two cores). On a quiet one, whose figures the README has, the
// event that comes by itself costs 1.8 times HAProxy's and the small request 2.8: the less there is to do, the more often
// all of it sleeps and is woken.
package streaming
