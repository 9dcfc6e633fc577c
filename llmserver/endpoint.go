package llmserver

import "time"

// An Endpoint is the description of a replica by configuration or discovery. URL, Instance and
// CountsSlots are the identity: an endpoint with another value of one of them is another replica.
type Endpoint struct {
	Model    string // the ID of the model for clients
	ID       string // the name for operators and the hash ring
	Label    string // the name in texts for clients; the ID if empty
	URL      string // scheme://host:port and an optional base path, without /v1
	Instance string // the process behind the URL, if known
	Source   string // where the endpoint comes from, for operators
	Limit    int    // concurrent requests; at most MaxLimit
	Draining bool   // admits nothing new; ongoing requests finish
	APIKey   string // replaces the client's Authorization, if not empty

	CountsSlots bool   // an agent counts the slots, and its reports give the capacity
	SlotSecret  string // shared secret of the agent's control calls

	ConnectTimeout time.Duration
	SendTimeout    time.Duration // how long the replica may read nothing of a request; 0: only the kernel's bound
	ServedName     string        // of the model at the replica, looked up in its list of models; empty: not checked
	ProbePath      string        // of HTTP's probes, with a query or without; empty: /health
	ProbeEvery     time.Duration // 0: never probed
	ProbeTimeout   time.Duration
}

// An identity is equal for two endpoints of the same process, reached in the same way.
type identity struct {
	url, instance string
	countsSlots   bool
}

func (e Endpoint) identity() identity { return identity{e.URL, e.Instance, e.CountsSlots} }

// Events are optional callbacks for background events of replicas. They are called from any
// goroutine, with no lock held, and must not block.
type Events struct {
	// CancelFailed: the cancel of a reserved slot did not reach the backend.
	CancelFailed func(replica string, err error)
	// CapacityDiffers: a replica reports a capacity other than the configured one. The reported
	// capacity applies.
	CapacityDiffers func(replica string, configured, reported int)
	// Restarted: another process responds at the replica's address. The next Pool.Set makes a new
	// Replica.
	Restarted func(Endpoint)
	// ModelUnlisted: the replica's list of models lacks the endpoint's ServedName. listed has at
	// most 10 names of that list, which the callback must not modify.
	ModelUnlisted func(e Endpoint, listed []string)
	// Exhausted: this process lacked descriptors, ports or memory to connect to a replica. The
	// error is an ErrExhausted.
	Exhausted func(err error)
	// StateChanged: Replica.State has changed. The changes of one replica are reported one at a
	// time, in order, each with the state before as From. Of changes that follow each other within
	// microseconds only the last may be reported.
	StateChanged func(StateChange)
}
