package config

import (
	"crypto/sha256"
	"time"
)

// A Config is an effective configuration: every default filled in, every check passed. Treat it as immutable.
type Config struct {
	HTTP    HTTP
	Admin   Admin
	Auth    Auth
	Session Session

	ExtraPaths []string // of POSTs that pass beyond the known ones; one that ends in /* stands for all below it

	DecisionHeaders bool // answers say how their replica was chosen
	DecisionLog     DecisionLog
	AccessLog       string // the file that gets a line for each request; [ToStdout]; empty: none

	Models []Model // at least one, in the order of the file
}

// ToStdout is the file name that stands for standard output.
const ToStdout = "-"

// Session says what names the conversation that a request belongs to: the first that is not empty, headers before fields.
type Session struct {
	Headers  []string // in lower case; - and _ are equal
	BodyKeys []string // top-level strings of the request body
}

// DecisionLog is the file that says, a line for each request, how it was placed and what came of it.
type DecisionLog struct {
	Path   string // empty: there is none
	KeyEnv string // names the environment variable with the key of its hashes; empty: one made at random
}

// HTTP says how clients are served.
type HTTP struct {
	Address          string // host:port to listen on
	MaxBodyBytes     int64  // of one request
	MaxBufferedBytes int64  // of all request bodies held at once; at least MaxBodyBytes, or 0: as memory allows
	MaxConnections   int    // of clients, open at once; 0: derived from the limit of descriptors
	BodyTimeout      time.Duration
	SendTimeout      time.Duration // how long a client may read nothing of its response; > 0
	DrainDelay       time.Duration // 0: stop accepting at once
	DrainTimeout     time.Duration // 0: wait for no stream
	TLS              TLS
	CORS             *CORS // nil: browsers on other sites are not let in
}

// TLS says how connections of clients are encrypted. Zero: they are not.
type TLS struct {
	CertFile string // PEM; relative to the working directory
	KeyFile  string
}

// CORS says which web pages a browser lets read answers.
type CORS struct {
	AllowedOrigins []string // scheme://host[:port] in lower case; "*": all
}

// Auth says which API keys clients must bring. Zero: none.
type Auth struct {
	KeysEnv string // names the environment variable with more keys, as [ParseKeys] reads them; empty: none
	Keys    []Key
}

// A Key is an API key, known by its hash alone.
type Key struct {
	Name               string // unique; for logs and metrics
	Hash               [sha256.Size]byte
	Models             []string // ids or aliases of those that it may use; nil: all
	MaxOngoingRequests int      // at once; 0: no bound
}

// Admin is the listener for operators.
type Admin struct {
	Address string // host:port; empty: no admin listener
	KeyEnv  string // names the environment variable with the key that its callers must bring; empty: none
}

// A Model is what clients name in a request, and the replicas that serve it.
type Model struct {
	ID         string   // what clients call it; unique among the ids and aliases of all models
	ServedName string   // what the engine calls it
	Aliases    []string // further names that clients may use

	MaxOngoingRequests int           // slots of a replica without a cap of its own, 1 to [MaxOngoing]
	MaxQueuedRequests  int           // -1: no bound
	QueueTimeout       time.Duration // > 0
	Router             Router

	HealthCheckPeriod  time.Duration
	HealthCheckTimeout time.Duration
	ConnectTimeout     time.Duration
	SendTimeout        time.Duration // how long a replica may read nothing of a request; > 0
	FirstByteTimeout   time.Duration // of a stream, from its dispatch; 0: none
	IdleTimeout        time.Duration // between bytes of a stream; 0: none

	// UnstreamedFirstByteTimeout is that of a request that is not streamed; 0: none.
	UnstreamedFirstByteTimeout time.Duration

	TotalTimeout    time.Duration // of any request, from its head, waiting in line included; 0: none
	StreamKeepAlive time.Duration // silence within an event stream after which a comment is written; 0: none ever
	MaxAttempts     int           // at replicas, for one request

	SlotAuthority string // who counts the slots: [IngressCounts] or [ReplicaCounts]
	SlotSecretEnv string // names the environment variable with the secret of the replicas' agents; empty: none

	Replicas  []Replica  // empty if and only if Simulated is set
	Simulated *Simulated // nil: real engines
}

// Who counts the slots of a model's replicas.
const (
	IngressCounts = "ingress" // berth serve: exact where one ingress serves these replicas
	ReplicaCounts = "replica" // berth llmserver in front of each engine: exact for any number of ingresses
)

// A Router names the policy of a model.
type Router struct {
	Class  string         // the part of request_router_class after the last '.' or ':'
	Kwargs map[string]any // nil, bool, int, float64 (never whole below 2^53), string, []any, map[string]any
}

// A Replica is one engine process.
type Replica struct {
	ID                 string // unique in its model
	URL                string // scheme://host[:port][/path]: no default port, no trailing slash, no trailing /v1
	MaxOngoingRequests int
	APIKeyEnv          string // names the environment variable with its key; empty: the client's own key is passed on
}

// Simulated is the cost model of in-process engines that stand in for real ones.
type Simulated struct {
	Replicas               int
	PrefillTokensPerSecond float64
	DecodeStep             time.Duration
	DecodeStepPerRequest   time.Duration
	KVCacheTokens          int
}

// MaxOngoing is the largest capacity of a replica. A file may ask for any more, as Ray's users write 1e9
// or null for "no limit"; it gets this.
const MaxOngoing = 1<<20 - 1

// DefaultMaxOngoing is the capacity of a replica where a file says nothing of it.
const DefaultMaxOngoing = 256

// Checks are what a file must pass that this package cannot know by itself. Nil checks pass.
type Checks struct {
	// Router says what is wrong with a policy's short class name and its arguments. It must be pure.
	Router func(class string, kwargs map[string]any) error
	// ExtraPath says what is wrong with an entry of extra_paths. It must be pure.
	ExtraPath func(path string) error
	// MostBuffered is the max_buffered_bytes beyond which memory may run out; 0 if that is unknown.
	MostBuffered int64
}

// RestartKeys names the keys that differ between two configs and take effect at a restart only:
// the addresses, which are bound once, and whether TLS is spoken there.
func RestartKeys(running, next *Config) []string {
	var keys []string
	if running.HTTP.Address != next.HTTP.Address {
		keys = append(keys, "http.address")
	}
	if (running.HTTP.TLS == TLS{}) != (next.HTTP.TLS == TLS{}) {
		keys = append(keys, "http.tls")
	}
	if running.Admin.Address != next.Admin.Address {
		keys = append(keys, "admin.address")
	}
	return keys
}
