package simulated

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// serveMetrics writes the current metrics in Prometheus' text format, under vLLM's names.
func (e *Engine) serveMetrics(w http.ResponseWriter, _ *http.Request) {
	var running, waiting int
	var used float64
	var totals Totals
	if !e.withBatch(func(b *Batch) {
		running, waiting, totals = b.Running(), b.Waiting(), b.Totals()
		used = float64(b.cache.Held()) / float64(b.cache.Capacity())
	}) {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	_, finished := e.counts.snapshot()
	p := metricsPage{model: e.config.Model}
	p.family("num_requests_running", "gauge", "Number of requests in model execution batches.")
	p.value("", float64(running))
	p.family("num_requests_waiting", "gauge", "Number of requests waiting to be processed.")
	p.value("", float64(waiting))
	p.family("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.")
	p.value("", used)
	p.family("prefix_cache_queries_total", "counter", "Prefix cache queries, in terms of number of queried tokens.")
	p.value("", float64(totals.QueriedTokens))
	p.family("prefix_cache_hits_total", "counter", "Prefix cache hits, in terms of number of cached tokens.")
	p.value("", float64(totals.HitTokens))
	p.family("prompt_tokens_total", "counter", "Number of prefill tokens processed.")
	p.value("", float64(totals.PromptTokens))
	p.family("generation_tokens_total", "counter", "Number of generation tokens processed.")
	p.value("", float64(totals.GeneratedTokens))
	p.family("request_success_total", "counter", "Count of processed requests by finish reason.")
	for _, reason := range slices.Sorted(maps.Keys(finished)) {
		p.value(fmt.Sprintf(",finished_reason=%q", reason), float64(finished[reason]))
	}
	p.family("cache_config_info", "gauge", "Information of the LLMEngine CacheConfig.")
	p.value(fmt.Sprintf(`,block_size="%d",num_gpu_blocks="%d",enable_prefix_caching="True"`,
		blockTokens, e.config.KVCacheTokens/blockTokens), 1)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Write(p.Bytes())
}

// A metricsPage is built family by family, each followed by the values.
type metricsPage struct {
	bytes.Buffer
	model string
	name  string
}

func (p *metricsPage) family(name, kind, help string) {
	p.name = "vllm:" + name
	fmt.Fprintf(p, "# HELP %s %s\n# TYPE %s %s\n", p.name, help, p.name, kind)
}

func (p *metricsPage) value(labels string, v float64) {
	fmt.Fprintf(p, "%s{engine=\"0\",model_name=%q%s} %v\n", p.name, p.model, labels, v)
}
