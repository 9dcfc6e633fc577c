package config

import (
	"net"
	"slices"
	"strconv"
	"strings"
)

// Keys of Ray Serve LLM used only by Ray's launcher, controller or proxy, by mapping.
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

// application reads an entry of applications. An application without models is ignored.
func (r *reader) application(n *node) {
	if n.kind == mapping && n.get("args").get("llm_configs") == nil {
		r.ignoreKey(n)
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
		r.warnf(n.at, "route_prefix has no effect; the API is always under /v1")
	}
}

// httpOptions reads the listen address from Ray's keys host and port.
func (r *reader) httpOptions(n *node) {
	host, written, _ := net.SplitHostPort(defaultHTTP().Address)
	port, _ := strconv.Atoi(written)
	r.object(r.httpOptionsConfig(&host, &port), rayHTTPOptions...)(n)
	if n.get("host") == nil && n.get("port") == nil {
		return
	}
	address := net.JoinHostPort(host, strconv.Itoa(port))
	if !isAddress(address) {
		r.problemf(n.get("host").at, "host must be a host name or an IP address")
		return
	}
	r.config.HTTP.Address = address
}

func (r *reader) httpOptionsConfig(host *string, port *int) fields {
	return fields{
		"host": r.label(host),
		"port": wholeNumber(r, port, 0, 65535),
	}
}

// warnIgnored adds one warning per file with the list of ignored keys, at the position of the
// first.
func (r *reader) warnIgnored() {
	byFile := make(map[string][]*node)
	for _, n := range r.ignored {
		byFile[n.key.file] = append(byFile[n.key.file], n)
	}
	for _, ignored := range byFile {
		first := slices.MinFunc(ignored, func(a, b *node) int { return a.key.compare(b.key) })
		names := make([]string, len(ignored))
		for i, n := range ignored {
			names[i] = n.name
		}
		slices.Sort(names)
		r.warnf(first.key, "keys without effect, since only Ray's launcher and controller use them: %s",
			strings.Join(slices.Compact(names), ", "))
	}
}
