package config

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// Keys of Ray Serve LLM that its launcher, controller or proxy gives effect to, by the mapping they stand in.
var (
	rayFile = []string{
		"controller_options", "grpc_options", "logging_config", "proxy_location", "target_capacity",
	}
	rayHTTPOptions = []string{
		"keep_alive_timeout_s", "location", "middlewares", "num_cpus", "request_timeout_s", "root_path", "root_url",
		"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password",
	}
	rayApplication = []string{
		"autoscaling_policy", "deployments", "external_scaler_enabled", "host", "logging_config", "port", "runtime_env",
	}
	rayArgs  = []string{"ingress_cls_config", "ingress_deployment_config"}
	rayModel = []string{
		"accelerator_config", "accelerator_type", "callback_config", "engine_kwargs", "experimental_configs",
		"llm_engine", "log_engine_metrics", "lora_config", "placement_group_config", "runtime_env", "server_cls", "use_cpu",
	}
	rayModelLoading = []string{"tokenizer_source"}
	rayDeployment   = []string{
		"autoscaling_config", "backpressure_config", "graceful_shutdown_timeout_s", "graceful_shutdown_wait_loop_s",
		"logging_config", "max_constructor_retry_count", "max_replicas_per_node", "name", "placement_group_bundles",
		"placement_group_strategy", "ray_actor_options", "rolling_update_percentage", "user_config",
	}
	rayRequestRouter = []string{
		"backoff_multiplier", "initial_backoff_s", "max_backoff_s",
		"request_routing_stats_period_s", "request_routing_stats_timeout_s",
	}
)

// application reads an entry of applications. One that serves no models is none of ours.
func (r *reader) application(n *node) {
	if n.kind == mapping && n.get("args").get("llm_configs") == nil {
		r.ignore(n)
		return
	}
	r.object(r.applicationConfig(), rayApplication...)(n)
}

func (r *reader) applicationConfig() fields {
	return fields{
		"name":         func(*node) {},
		"import_path":  func(*node) {},
		"route_prefix": r.routePrefix,
		"args":         r.object(r.applicationArgs(), rayArgs...),
	}
}

func (r *reader) applicationArgs() fields {
	return fields{"llm_configs": r.list(r.modelOrFile)}
}

func (r *reader) routePrefix(n *node) {
	if n.kind != text || n.text != "/" {
		r.warn(n.at, "route_prefix takes no effect; clients find the API under /v1")
	}
}

// httpOptions reads the address to listen on from Ray's two keys.
func (r *reader) httpOptions(n *node) {
	host, written, _ := net.SplitHostPort(defaultHTTP().Address)
	port, _ := strconv.Atoi(written)
	r.object(r.httpOptionsConfig(&host, &port), rayHTTPOptions...)(n)
	if n.get("host") == nil && n.get("port") == nil {
		return
	}
	address := net.JoinHostPort(host, strconv.Itoa(port))
	if !isAddress(address) {
		r.fail(n.get("host").at, "host must be a host name or an IP address")
		return
	}
	r.config.HTTP.Address = address
}

func (r *reader) httpOptionsConfig(host *string, port *int) fields {
	return fields{
		"host": r.label(host),
		"port": whole(r, port, 0, 65535),
	}
}

// reportIdle adds one warning per file that names the keys accepted without effect, at the first of them.
func (r *reader) reportIdle() {
	byFile := make(map[string][]*node)
	for _, n := range r.idle {
		byFile[n.key.file] = append(byFile[n.key.file], n)
	}
	for _, idle := range byFile {
		first := slices.MinFunc(idle, func(a, b *node) int { return a.key.compare(b.key) })
		names := make([]string, len(idle))
		for i, n := range idle {
			names[i] = n.name
		}
		slices.Sort(names)
		r.warn(first.key, "accepted without effect, as only Ray's launcher and controller use them: %s",
			strings.Join(slices.Compact(names), ", "))
	}
}
