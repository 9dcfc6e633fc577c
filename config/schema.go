package config

import (
	"math"
	"time"
)

// This file is the schema, one table per mapping. Conditions between keys are in model.go and
// check.go.

// minDuration is the minimum of nonzero durations.
const minDuration = time.Millisecond

func (r *reader) file() fields {
	return fields{
		"http":              r.object(r.http(&r.config.HTTP)),
		"admin":             r.object(r.admin(&r.config.Admin)),
		"auth":              r.auth,
		"session_headers":   r.sessionHeaders,
		"session_body_keys": r.sessionKeys,
		"extra_paths":       r.list(r.extraPath),
		"decision_headers":  r.flag(&r.config.DecisionHeaders),
		"decision_log":      r.decisionLog,
		"access_log":        r.fileOrSwitch(&r.config.AccessLog),
		"llm_configs":       r.list(r.modelOrFile),
		"applications":      r.list(r.application),
		"http_options":      r.httpOptions,
	}
}

func (r *reader) http(h *HTTP) fields {
	return fields{
		"address":            r.listenAddress(&h.Address),
		"max_body_bytes":     wholeNumber(r, &h.MaxBodyBytes, 1, 1<<40),
		"max_buffered_bytes": wholeNumber(r, &h.MaxBufferedBytes, 0, 1<<50),
		"max_connections":    wholeNumber(r, &h.MaxConnections, 0, math.MaxInt32),
		"body_timeout_s":     r.seconds(&h.BodyTimeout, minDuration),
		"send_timeout_s":     r.seconds(&h.SendTimeout, minDuration),
		"drain_delay_s":      r.seconds(&h.DrainDelay, 0),
		"drain_timeout_s":    r.seconds(&h.DrainTimeout, 0),
		"tls":                r.tls(&h.TLS),
		"cors":               r.cors(&h.CORS),
	}
}

func (r *reader) tlsConfig(t *TLS) fields {
	return fields{"cert_file": r.filePath(&t.CertFile), "key_file": r.filePath(&t.KeyFile)}
}

func (r *reader) corsConfig(c *CORS) fields {
	return fields{"allowed_origins": r.origins(c)}
}

func (r *reader) admin(a *Admin) fields {
	return fields{"address": r.optionalListenAddress(&a.Address), "api_key_env": r.variable(&a.KeyEnv)}
}

func (r *reader) decisionLogConfig(l *DecisionLog) fields {
	return fields{"path": r.label(&l.Path), "key_env": r.variable(&l.KeyEnv)}
}

func (r *reader) authConfig(a *Auth) fields {
	return fields{
		"keys_file":    r.keysFile,
		"api_keys_env": r.variable(&a.KeysEnv),
		"keys":         r.keys,
	}
}

func (r *reader) key(k *Key) fields {
	return fields{
		"name":                 r.label(&k.Name),
		"key":                  r.keySecret(&k.Hash),
		"sha256":               r.keyDigest(&k.Hash),
		"models":               r.keyModels(k),
		"max_ongoing_requests": wholeNumber(r, &k.MaxOngoingRequests, 1, math.MaxInt32),
	}
}

func (r *reader) modelConfig(m *Model) fields {
	return fields{
		"model_loading_config": r.object(r.modelLoading(m), rayModelLoading...),
		"served_model_name":    r.label(&m.ServedName),
		"aliases":              r.list(r.alias(m)),
		"deployment_config":    r.object(r.deployment(m), rayDeployment...),
		"timeouts":             r.timeouts(m),
		"stream_keepalive_s":   r.timeout(&m.StreamKeepAlive),

		"stream_keepalive_while_queued": r.flag(&m.KeepAliveWhileQueued),

		"max_attempts":    wholeNumber(r, &m.MaxAttempts, 1, 100),
		"slot_authority":  r.oneOf(&m.SlotAuthority, IngressCounts, ReplicaCounts),
		"slot_secret_env": r.variable(&m.SlotSecretEnv),
		"replicas":        func(*node) {}, // read last, once the capacity of the model is known
		"file":            r.filePath(&m.File),
		"dns":             r.dns(m),
		"kubernetes":      r.kubernetes(m),
		"simulated":       func(n *node) { r.object(r.simulated(m.Simulated))(n) },
	}
}

func (r *reader) modelLoading(m *Model) fields {
	return fields{
		"model_id":     r.label(&m.ID),
		"model_source": func(*node) {}, // for the launcher of the engine; Ray allows any value
	}
}

func (r *reader) deployment(m *Model) fields {
	known := fields{
		"num_replicas":           r.ignoreKey, // Ray launches them, unless they are simulated
		"max_ongoing_requests":   r.capacity(&m.MaxOngoingRequests),
		"max_queued_requests":    wholeNumber(r, &m.MaxQueuedRequests, -1, math.MaxInt32),
		"queue_timeout_s":        r.seconds(&m.QueueTimeout, minDuration),
		"health_check_path":      r.healthCheckPath(&m.HealthCheckPath),
		"health_check_period_s":  r.seconds(&m.HealthCheckPeriod, minDuration),
		"health_check_timeout_s": r.seconds(&m.HealthCheckTimeout, minDuration),
		"request_router_config":  r.routerConfig(&m.Router),
	}
	if m.Simulated != nil {
		known["num_replicas"] = wholeNumber(r, &m.Simulated.Replicas, 1, 4096)
	}
	return known
}

func (r *reader) requestRouter(router *Router) fields {
	return fields{
		"request_router_class":  r.routerClass(&router.Class),
		"request_router_kwargs": r.kwargs(&router.Kwargs),
	}
}

func (r *reader) timeoutConfig(m *Model) fields {
	return fields{
		"connect_s":               r.seconds(&m.ConnectTimeout, minDuration),
		"send_s":                  r.seconds(&m.SendTimeout, minDuration),
		"first_byte_s":            r.timeout(&m.FirstByteTimeout),
		"idle_s":                  r.timeout(&m.IdleTimeout),
		"unstreamed_first_byte_s": r.timeout(&m.UnstreamedFirstByteTimeout),
		"total_s":                 r.timeout(&m.TotalTimeout),
	}
}

func (r *reader) replica(rep *Replica) fields {
	return fields{
		"id":                   r.label(&rep.ID),
		"url":                  r.replicaURL(&rep.URL),
		"max_ongoing_requests": r.capacity(&rep.MaxOngoingRequests),
		"api_key_env":          r.variable(&rep.APIKeyEnv),
		"health_check_path":    r.healthCheckPath(&rep.HealthCheckPath),
	}
}

func (r *reader) dnsConfig(d *DNS) fields {
	return fields{
		"name":        r.hostName(&d.Name),
		"type":        r.oneOf(&d.Type, DNSTypes...),
		"port":        wholeNumber(r, &d.Port, 1, 65535),
		"server":      r.dnsServer(&d.Server),
		"period_s":    r.timeout(&d.Period),
		"keep_s":      r.seconds(&d.Keep, 0),
		"api_key_env": r.variable(&d.APIKeyEnv),
	}
}

func (r *reader) kubernetesConfig(k *Kubernetes) fields {
	return fields{
		"service":     r.kubernetesName(&k.Service),
		"selector":    r.selector(&k.Selector),
		"port":        r.portOrName(&k.Port),
		"namespace":   r.kubernetesName(&k.Namespace),
		"kubeconfig":  r.filePath(&k.Kubeconfig),
		"api_key_env": r.variable(&k.APIKeyEnv),
	}
}

// simulated is the cost model. No duration may be zero, since a step must take time.
func (r *reader) simulated(s *Simulated) fields {
	return fields{
		"prefill_tokens_per_s":       r.rate(&s.PrefillTokensPerSecond),
		"decode_step_ms":             r.milliseconds(&s.DecodeStep, time.Microsecond),
		"decode_step_per_request_ms": r.milliseconds(&s.DecodeStepPerRequest, time.Microsecond),
		"kv_cache_tokens":            wholeNumber(r, &s.KVCacheTokens, 16, math.MaxInt32),
	}
}
