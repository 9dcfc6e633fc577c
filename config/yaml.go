package config

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"
)

// YAML returns the effective configuration with every key. [Parse] returns an equal Config for the
// text.
func (c *Config) YAML() []byte {
	w := new(writer)
	w.line(0, "http:")
	w.key(1, "address", c.HTTP.Address)
	w.key(1, "max_body_bytes", c.HTTP.MaxBodyBytes)
	w.key(1, "max_buffered_bytes", c.HTTP.MaxBufferedBytes)
	w.key(1, "max_connections", c.HTTP.MaxConnections)
	w.key(1, "body_timeout_s", c.HTTP.BodyTimeout.Seconds())
	w.key(1, "send_timeout_s", c.HTTP.SendTimeout.Seconds())
	w.key(1, "drain_delay_s", c.HTTP.DrainDelay.Seconds())
	w.key(1, "drain_timeout_s", c.HTTP.DrainTimeout.Seconds())
	if t := c.HTTP.TLS; t != (TLS{}) {
		w.line(1, "tls:")
		w.key(2, "cert_file", t.CertFile)
		w.key(2, "key_file", t.KeyFile)
	}
	if c.HTTP.CORS != nil {
		w.line(1, "cors:")
		w.key(2, "allowed_origins", c.HTTP.CORS.AllowedOrigins)
	}
	w.line(0, "admin:")
	w.key(1, "address", c.Admin.Address)
	if c.Admin.KeyEnv != "" {
		w.key(1, "api_key_env", c.Admin.KeyEnv)
	}
	w.auth(c.Auth)
	w.key(0, "session_headers", append([]string{}, c.Session.Headers...)) // not null
	w.key(0, "session_body_keys", append([]string{}, c.Session.BodyKeys...))
	if len(c.ExtraPaths) > 0 {
		w.key(0, "extra_paths", c.ExtraPaths)
	}
	w.key(0, "decision_headers", c.DecisionHeaders)
	if log := c.DecisionLog; log.Path != "" {
		w.line(0, "decision_log:")
		w.key(1, "path", log.Path)
		if log.KeyEnv != "" {
			w.key(1, "key_env", log.KeyEnv)
		}
	}
	switch c.AccessLog {
	case "", ToStdout:
		w.key(0, "access_log", c.AccessLog != "")
	default:
		w.key(0, "access_log", c.AccessLog)
	}
	w.line(0, "llm_configs:")
	for _, m := range c.Models {
		w.model(m)
	}
	return w.Bytes()
}

// A writer writes YAML in block style with values in JSON, a subset of YAML with only one way of
// quoting.
type writer struct{ bytes.Buffer }

// auth writes API keys by their hashes, including those from a keys_file.
func (w *writer) auth(a Auth) {
	if a.KeysEnv == "" && len(a.Keys) == 0 {
		return
	}
	w.line(0, "auth:")
	if a.KeysEnv != "" {
		w.key(1, "api_keys_env", a.KeysEnv)
	}
	if len(a.Keys) == 0 {
		return
	}
	w.line(1, "keys:")
	for _, k := range a.Keys {
		w.key(2, "- name", k.Name)
		w.key(3, "sha256", hex.EncodeToString(k.Hash[:]))
		if len(k.Models) > 0 {
			w.key(3, "models", k.Models)
		}
		if k.MaxOngoingRequests > 0 {
			w.key(3, "max_ongoing_requests", k.MaxOngoingRequests)
		}
	}
}

func (w *writer) model(m Model) {
	w.line(1, "- model_loading_config:")
	w.key(3, "model_id", m.ID)
	w.key(2, "served_model_name", m.ServedName)
	if len(m.Aliases) > 0 {
		w.key(2, "aliases", m.Aliases)
	}
	w.line(2, "deployment_config:")
	if m.Simulated != nil {
		w.key(3, "num_replicas", m.Simulated.Replicas)
	}
	w.key(3, "max_ongoing_requests", m.MaxOngoingRequests)
	w.key(3, "max_queued_requests", m.MaxQueuedRequests)
	w.key(3, "queue_timeout_s", m.QueueTimeout.Seconds())
	if m.SlotAuthority != ReplicaCounts { // else the key is an error
		w.key(3, "health_check_path", m.HealthCheckPath)
	}
	w.key(3, "health_check_period_s", m.HealthCheckPeriod.Seconds())
	w.key(3, "health_check_timeout_s", m.HealthCheckTimeout.Seconds())
	w.line(3, "request_router_config:")
	w.key(4, "request_router_class", m.Router.Class)
	if len(m.Router.Kwargs) > 0 {
		w.key(4, "request_router_kwargs", m.Router.Kwargs)
	}
	w.line(2, "timeouts:")
	w.key(3, "connect_s", m.ConnectTimeout.Seconds())
	w.key(3, "send_s", m.SendTimeout.Seconds())
	w.key(3, "first_byte_s", m.FirstByteTimeout.Seconds())
	w.key(3, "idle_s", m.IdleTimeout.Seconds())
	w.key(3, "unstreamed_first_byte_s", m.UnstreamedFirstByteTimeout.Seconds())
	w.key(3, "total_s", m.TotalTimeout.Seconds())
	w.key(2, "stream_keepalive_s", m.StreamKeepAlive.Seconds())
	w.key(2, "stream_keepalive_while_queued", m.KeepAliveWhileQueued)
	w.key(2, "max_attempts", m.MaxAttempts)
	w.key(2, "slot_authority", m.SlotAuthority)
	if m.SlotSecretEnv != "" {
		w.key(2, "slot_secret_env", m.SlotSecretEnv)
	}
	if m.Simulated != nil {
		w.simulated(m.Simulated)
	}
	if len(m.Replicas) > 0 {
		w.line(2, "replicas:")
	}
	for _, r := range m.Replicas {
		w.replica(r, m.HealthCheckPath)
	}
	if m.File != "" {
		w.key(2, "file", m.File)
	}
	if m.DNS != nil {
		w.dns(m.DNS)
	}
	if m.Kubernetes != nil {
		w.kubernetes(m.Kubernetes)
	}
}

func (w *writer) dns(d *DNS) {
	w.line(2, "dns:")
	w.key(3, "name", d.Name)
	w.key(3, "type", d.Type)
	if d.Port != 0 {
		w.key(3, "port", d.Port)
	}
	w.optional(3, "server", d.Server)
	w.key(3, "period_s", d.Period.Seconds())
	w.key(3, "keep_s", d.Keep.Seconds())
	w.optional(3, "api_key_env", d.APIKeyEnv)
}

func (w *writer) kubernetes(k *Kubernetes) {
	w.line(2, "kubernetes:")
	w.optional(3, "service", k.Service)
	w.optional(3, "selector", k.Selector)
	w.optional(3, "port", k.Port)
	w.optional(3, "namespace", k.Namespace)
	w.optional(3, "kubeconfig", k.Kubeconfig)
	w.optional(3, "api_key_env", k.APIKeyEnv)
}

// replica writes a replica of a model with the given health check path.
func (w *writer) replica(r Replica, healthCheckPath string) {
	w.key(3, "- id", r.ID)
	w.key(4, "url", r.URL)
	w.key(4, "max_ongoing_requests", r.MaxOngoingRequests)
	if r.APIKeyEnv != "" {
		w.key(4, "api_key_env", r.APIKeyEnv)
	}
	if r.HealthCheckPath != healthCheckPath {
		w.key(4, "health_check_path", r.HealthCheckPath)
	}
}

func (w *writer) simulated(s *Simulated) {
	milliseconds := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	w.line(2, "simulated:")
	w.key(3, "prefill_tokens_per_s", s.PrefillTokensPerSecond)
	w.key(3, "decode_step_ms", milliseconds(s.DecodeStep))
	w.key(3, "decode_step_per_request_ms", milliseconds(s.DecodeStepPerRequest))
	w.key(3, "kv_cache_tokens", s.KVCacheTokens)
}

// optional writes a key with a value that is not empty.
func (w *writer) optional(indent int, key, value string) {
	if value != "" {
		w.key(indent, key, value)
	}
}

// line writes an indented line.
func (w *writer) line(indent int, text string) {
	fmt.Fprintf(w, "%*s%s\n", 2*indent, "", text)
}

// key writes a key and the value in JSON; the encoder ends the line.
func (w *writer) key(indent int, key string, value any) {
	fmt.Fprintf(w, "%*s%s: ", 2*indent, "", key)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(value); err != nil {
		panic(fmt.Sprintf("BUG: %s is not plain data: %v", key, err))
	}
}
