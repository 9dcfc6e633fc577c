// Package scenes measures what clients notice of one failing engine among four behind a router.
//
// A scene is one Fault. StartFleet starts four engines, the caller starts a router in front of
// them, and Run sends an open loop of requests: half of them streams, in 20 sessions, each with a
// prompt of its own. After a warm-up the fault begins at the engine that got most requests so far,
// lasts for a while and ends; the load continues for some seconds.
//
// Engines run in this process, except for faults that need a process to kill or to stop: these
// engines are the running executable, started again. Its main function (or TestMain) must call
// ServeEngine first.
package scenes
