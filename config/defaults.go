package config

import (
	_ "embed"
	"fmt"
	"net"
	"net/url"
	"time"
)

//go:embed default.yaml
var defaultYAML []byte

// Default returns the configuration for use without a file: the model "demo" on three simulated
// replicas. Each call returns a new Config.
func Default() *Config {
	c, _, err := Parse(defaultYAML, "default.yaml", Checks{})
	if err != nil {
		panic(fmt.Sprintf("BUG: the embedded configuration is wrong: %v", err))
	}
	return c
}

// The functions of this file are the only source of values for keys missing in a file: a struct
// starts with its defaults, and fillIn adds the names derived from other values.

func defaultHTTP() HTTP {
	return HTTP{
		Address:          "127.0.0.1:8000",
		MaxBodyBytes:     64 << 20,
		MaxBufferedBytes: 0,
		BodyTimeout:      30 * time.Second,
		SendTimeout:      2 * time.Minute,
		DrainDelay:       0,
		DrainTimeout:     10 * time.Minute,
	}
}

func defaultAdmin() Admin {
	return Admin{Address: "127.0.0.1:8001"}
}

func defaultSession() Session {
	return Session{
		Headers:  []string{"x-session-id", "x-correlation-id", "x-session-affinity"},
		BodyKeys: []string{"prompt_cache_key"},
	}
}

func defaultModel() Model {
	return Model{
		MaxOngoingRequests: DefaultMaxOngoing,
		MaxQueuedRequests:  1024,
		QueueTimeout:       time.Minute,
		Router:             Router{Class: "RoundRobinRouter"},
		HealthCheckPath:    DefaultHealthCheckPath,
		HealthCheckPeriod:  5 * time.Second,
		HealthCheckTimeout: 4 * time.Second,
		ConnectTimeout:     5 * time.Second,
		SendTimeout:        2 * time.Minute,
		FirstByteTimeout:   10 * time.Minute,
		IdleTimeout:        5 * time.Minute,

		UnstreamedFirstByteTimeout: 30 * time.Minute,

		MaxAttempts:   3,
		SlotAuthority: IngressCounts,
	}
}

func defaultSimulated() *Simulated {
	return &Simulated{
		Replicas:               1,
		PrefillTokensPerSecond: 8000,
		DecodeStep:             6 * time.Millisecond,
		DecodeStepPerRequest:   350 * time.Microsecond,
		KVCacheTokens:          512 << 10,
	}
}

func defaultDNS() DNS {
	return DNS{Type: "A", Keep: time.Minute}
}

// defaultReplica returns the defaults of a replica of m, whose capacity must have been read.
func defaultReplica(m *Model) Replica {
	return Replica{MaxOngoingRequests: m.MaxOngoingRequests, HealthCheckPath: m.HealthCheckPath}
}

// fillIn uses the model's id as the default of ServedName.
func (m *Model) fillIn() {
	if m.ServedName == "" {
		m.ServedName = m.ID
	}
}

// fillIn uses host:port as the default of ID.
func (r *Replica) fillIn() {
	if r.ID == "" {
		r.ID = hostPort(r.URL)
	}
}

// hostPort returns host and port of a normalized URL, with the default port of the scheme if there
// is none, and an empty string for an invalid URL.
func hostPort(normalized string) string {
	u, err := url.Parse(normalized)
	if err != nil || u.Host == "" {
		return ""
	}
	port := u.Port()
	if port == "" {
		port = defaultPorts[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}
