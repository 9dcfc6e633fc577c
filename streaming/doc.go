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
//	write and flush            42 %   the system call alone 31, most of it the kernel handing the bytes to the client's
//	                                  socket; the writers of gin and of ingress/http1 8 (net/http's were 10 with gin's)
//	read                       31 %   two system calls 17: Go reads before it waits, and that first read finds nothing;
//	                                  the poller and what is around it 9, taking the chunked coding apart 2
//	scheduler                  12 %   of which the poller's system call 5
//	the runtime's monitor       0 %   once 10: the first system call after all was idle woke it, see package socket
//	tap                         3 %   tokens, usage and gaps
//	finding ends of events      1 %
//	begin and end of requests   4 %
//	watch of the write          0 %   two additions; its timer fires twice a minute
//
// Nothing is allocated per event: TestAnEventIsPassedWithoutAllocation.
//
// What took time and went: net/http's transport, whose two goroutines per connection each event changed between (package
// http1); telling the scheduler of each system call (package socket); processors beyond what the load needs, which look for
// work and find none (cmd/berth); a copy buffer of 32 KiB per stream; a write deadline per write, which is two changes of a timer (see watch); a flush of
// the header by itself, which is a write more per answer, as is the flush of an answer of known length; the watch's timer where an answer is short.
//
// What was tried and brought too little: putting events into the chunked coding here and writing them past net/http,
// a build with a profile; larger reads while those of 4 KiB come full (bulk costs the same, for the kernel hands over what has come
// and there seldom is more); and to wait before the first read. That is safe if the wait never leaves one call of
// syscall.RawConn.Read, within which the relay must then run, and if package hangup tells of an end that comes together with the last bytes. It
// spared one read in two, and 2 % of a lone event, 1 % of one of 1,000 streams, for some 4 KiB more stack per stream.
//
// Before and after package socket, processors that follow the load and ingress/http1, in one interleaved run on two cores that
// other work slowed down (the README has the figures of a quiet machine):
//
//	                                    before          after           before and after / HAProxy
//	event of 200 streams                29.6 µs         23.2 µs         1.58    1.24
//	memory of each of 1,000 streams     54 KiB          28 KiB
//
// Half of that memory were stacks of 16 KiB. A plain request now gets along with 8, with some 2 KiB to spare. One that once
// needed more keeps 16 unless less than a quarter is in use, for which the frames between a connection's goroutine and its wait
// for the next event may take 3,296 bytes. They take 3,256. A test in e2e fails when the stacks are 16 KiB again.
//
// The less there is to do, the more often all of it sleeps and is woken, and the further HAProxy is ahead.
package streaming
