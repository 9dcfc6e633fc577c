package config

import (
	"crypto/sha256"
	"time"
)

// A Config is an effective configuration: valid, with all defaults. A Config in use must not be
// modified.
type Config struct {
	HTTP    HTTP
	Admin   Admin
	Auth    Auth
	Session Session

	// ExtraPaths are paths of POST requests forwarded in addition to the known ones. /* at the end
	// matches all paths below.
	ExtraPaths []string

	DecisionHeaders bool // responses have headers describing the choice of the replica
	DecisionLog     DecisionLog
	AccessLog       string // a file; [ToStdout]; empty: none

	Models []Model // at least one, in the order of the file
}

// ToStdout is the file name of standard output.
const ToStdout = "-"

// Session lists the sources of the session ID of a request. The first non-empty one wins, headers
// before body keys.
type Session struct {
	Headers  []string // in lower case, with - in place of _
	BodyKeys []string // top-level keys of the request body
}

// DecisionLog configures the log of routing decisions, one line per request.
type DecisionLog struct {
	Path   string // empty: no log
	KeyEnv string // environment variable with the key of the hashes; empty: a random key
}

// HTTP configures the listener for clients.
type HTTP struct {
	Address          string // host:port to listen on
	MaxBodyBytes     int64  // of one request body
	MaxBufferedBytes int64  // of all request bodies in memory; >= MaxBodyBytes, or 0: derived
	MaxConnections   int    // of clients; 0: derived from the limit of descriptors
	BodyTimeout      time.Duration
	SendTimeout      time.Duration // of a write without progress; > 0
	DrainDelay       time.Duration // 0: stop accepting at once
	DrainTimeout     time.Duration // 0: wait for no request
	TLS              TLS
	CORS             *CORS // nil: no cross-origin requests
}

// TLS names certificate and key of the listener for clients. The zero value means plain HTTP.
type TLS struct {
	CertFile string // PEM; relative to the working directory
	KeyFile  string
}

// CORS configures cross-origin requests.
type CORS struct {
	AllowedOrigins []string // scheme://host[:port] in lower case; "*": all
}

// Auth holds the API keys of clients. The zero value requires none.
type Auth struct {
	KeysEnv string // environment variable with further keys for [ParseKeys]; empty: none
	Keys    []Key
}

// A Key is an API key. Only its hash is kept.
type Key struct {
	Name               string // unique; for logs and metrics
	Hash               [sha256.Size]byte
	Models             []string // ids or aliases of the allowed models; nil: all
	MaxOngoingRequests int      // 0: no limit
}

// Admin configures the listener for operators.
type Admin struct {
	Address string // host:port; empty: no admin listener
	KeyEnv  string // environment variable with the key required of callers; empty: none
}

// A Model is a model and the sources of its replicas.
type Model struct {
	ID         string   // the name for clients; unique among the ids and aliases of all models
	ServedName string   // the name in the engine
	Aliases    []string // further names for clients

	MaxOngoingRequests int           // default number of slots per replica, 1 to [MaxOngoing]
	MaxQueuedRequests  int           // -1: no limit
	QueueTimeout       time.Duration // > 0
	Router             Router

	HealthCheckPath    string // of the probes, default of the replicas; unused with agents
	HealthCheckPeriod  time.Duration
	HealthCheckTimeout time.Duration
	ConnectTimeout     time.Duration
	SendTimeout        time.Duration // of a write to a replica without progress; > 0
	FirstByteTimeout   time.Duration // of a stream, from dispatch; 0: none
	IdleTimeout        time.Duration // between bytes of a stream; 0: none

	// UnstreamedFirstByteTimeout is the FirstByteTimeout of unstreamed requests; 0: none.
	UnstreamedFirstByteTimeout time.Duration

	TotalTimeout    time.Duration // of any request, including the wait in the queue; 0: none
	StreamKeepAlive time.Duration // idle time of an event stream before a comment; 0: never

	KeepAliveWhileQueued bool // comments may precede the replica's response

	MaxAttempts int // per request

	SlotAuthority string // [IngressCounts] or [ReplicaCounts]
	SlotSecretEnv string // environment variable with the agents' secret; empty: none

	// The sources of the replicas: at least one, and Simulated alone. Of two replicas with one
	// address the first counts, in the order of these fields.
	Replicas   []Replica
	File       string // path of a file with replicas, see [ParseReplicas]; empty: none
	DNS        *DNS
	Kubernetes *Kubernetes
	Simulated  *Simulated
}

// Values of SlotAuthority: which process counts the slots of a model's replicas.
const (
	IngressCounts = "ingress" // berth serve; exact if only one ingress uses the replicas
	ReplicaCounts = "replica" // berth llmserver beside each engine; exact for any number of ingresses
)

// A Router is the routing policy of a model.
type Router struct {
	Class  string         // the part of request_router_class after the last '.' or ':'
	Kwargs map[string]any // nil, bool, int, float64 (never whole below 2^53), string, []any, map[string]any
}

// A Replica is one LLM server process.
type Replica struct {
	ID                 string // unique in its model
	URL                string // scheme://host[:port][/path]: no default port, no trailing slash, no trailing /v1
	MaxOngoingRequests int
	APIKeyEnv          string // environment variable with the engine's API key; empty: the client's key is forwarded
	HealthCheckPath    string // unused with agents
}

// Simulated is the cost model of simulated engines in the process.
type Simulated struct {
	Replicas               int
	PrefillTokensPerSecond float64
	DecodeStep             time.Duration
	DecodeStepPerRequest   time.Duration
	KVCacheTokens          int
}

// MaxOngoing is the largest capacity of a replica. Larger numbers and null, which Ray's users write
// for "no limit", mean MaxOngoing.
const MaxOngoing = 1<<20 - 1

// DefaultMaxOngoing is the capacity of a replica if the file has none.
const DefaultMaxOngoing = 256

// DefaultHealthCheckPath is the path of probes if neither file nor command line has one.
const DefaultHealthCheckPath = "/health"

// Checks validate the parts of a file unknown to this package. Nil checks pass.
type Checks struct {
	// Router returns the problem with a policy's short class name and arguments. Router must be
	// pure.
	Router func(class string, kwargs map[string]any) error
	// ExtraPath returns the problem with an entry of extra_paths. ExtraPath must be pure.
	ExtraPath func(path string) error
	// Selector returns the problem with a label selector. Selector must be pure.
	Selector func(selector string) error
	// MostBuffered is the max_buffered_bytes above which memory may be exhausted; 0: unknown.
	MostBuffered int64
}

// RestartKeys returns the keys that differ between two configurations and take effect only after a
// restart: the addresses, which are bound once, and the use of TLS.
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
