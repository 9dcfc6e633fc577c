package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"berth/llmserver/simulated"
)

// dnsmasq is a dnsmasq process, which can be restarted with other records at the same address.
type dnsmasq struct {
	*command
	program, address string
	upstream         string // for the domain upstream.test
}

func newDNSMasq(t *testing.T) *dnsmasq {
	t.Helper()
	program, err := exec.LookPath("dnsmasq")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/dnsmasq"); err != nil {
			skipOrFail(t, "dnsmasq is required (Debian's package dnsmasq-base): %v", err)
		}
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer packets.Close()
	return &dnsmasq{program: program, address: packets.LocalAddr().String()}
}

// start starts dnsmasq with records, in the form of its options.
func (d *dnsmasq) start(t *testing.T, records ...string) {
	t.Helper()
	host, port, _ := net.SplitHostPort(d.address)
	account, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	upstreamHost, upstreamPort, _ := net.SplitHostPort(d.upstream)
	d.command = startCommand(t, "", d.program, append([]string{
		"--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--no-resolv", "--no-hosts", "--log-facility=-", "--user=" + account.Username,
		"--bind-interfaces", "--listen-address=" + host, "--port=" + port, "--cache-size=0", "--local-ttl=1", "--local=/vllm.test/",
		"--server=/upstream.test/" + upstreamHost + "#" + upstreamPort,
	}, records...)...)
	eventually(t, "dnsmasq responds", func() bool {
		q := new(dns.Msg)
		q.SetQuestion("vllm.test.", dns.TypeSOA)
		_, err := dns.Exchange(q, d.address)
		return err == nil
	})
}

func (d *dnsmasq) stop(t *testing.T) {
	t.Helper()
	d.signal(t, syscall.SIGTERM)
	d.waitExit(t)
}

// serveZone starts a DNS server that responds with the address of upstream.test, or with SERVFAIL
// once failing is set.
func serveZone(t *testing.T, failing *atomic.Bool) (address string) {
	t.Helper()
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	server := &dns.Server{PacketConn: packets, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		response := new(dns.Msg)
		if response.SetReply(q); failing.Load() {
			response.Rcode = dns.RcodeServerFailure
		} else {
			response.Answer = append(response.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1),
			})
		}
		w.WriteMsg(response)
	})}
	go server.ActivateAndServe()
	<-started
	t.Cleanup(func() { server.Shutdown() })
	return packets.LocalAddr().String()
}

// Three models by records of type A, SRV, and A of a server that fails, through all that happens to
// DNS in a day.
func TestDNSReplicasFollowDnsmasq(t *testing.T) {
	t.Parallel()
	d, failing := newDNSMasq(t), new(atomic.Bool)
	d.upstream = serveZone(t, failing)
	engines := startEngines(t, 4, simulated.Config{})
	var ports []string
	for _, e := range engines {
		ports = append(ports, e.URL()[strings.LastIndex(e.URL(), ":")+1:])
	}
	second, err := simulated.Listen("127.0.0.2:"+ports[0], simulated.Config{ID: "second"})
	if err != nil {
		skipOrFail(t, "a second loopback address with the same free port is required: %v", err)
	}
	t.Cleanup(second.Close)
	first, added := "--host-record=a.vllm.test,127.0.0.1", "--host-record=a.vllm.test,127.0.0.2"
	srv := func(target, port string, priority int) string {
		return fmt.Sprintf("--srv-host=_http._tcp.vllm.test,%s,%s,%d", target, port, priority)
	}
	targets := []string{"--host-record=one.vllm.test,127.0.0.1", "--host-record=two.vllm.test,127.0.0.1"}
	d.start(t, append(targets, first, srv("one.vllm.test", ports[1], 10), srv("two.vllm.test", ports[2], 20))...)

	entry := "- {model_loading_config: {model_id: %s}, served_model_name: demo, deployment_config: {queue_timeout_s: 30}, dns: {name: %s, server: %q, keep_s: 2, %s}}\n"
	b := serve(t, loopbackConfig+"llm_configs:\n"+
		fmt.Sprintf(entry, "a", "a.vllm.test.", d.address, "port: "+ports[0])+
		fmt.Sprintf(entry, "srv", "_http._tcp.vllm.test.", d.address, "type: SRV")+
		fmt.Sprintf(entry, "up", "upstream.test.", d.address, "port: "+ports[3]))
	client := newClient(t, false)
	served := func(model string) {
		t.Helper()
		if got := chat(t.Context(), client, b.url, chatBody(model, "Hello", 3, true)); !got.isComplete() {
			t.Errorf("%s got %v", model, got)
		}
	}
	want := func(model string, replicas, up float64) {
		t.Helper()
		label := fmt.Sprintf("model=%q", model)
		eventually(t, fmt.Sprintf("%s has %v replicas and up is %v", model, replicas, up), func() bool {
			return b.sumMetric(t, "berth_source_replicas", label) == replicas && b.sumMetric(t, "berth_source_up", label) == up
		})
	}
	has := func(model, replica string) {
		t.Helper()
		eventually(t, model+" has the replica "+replica, func() bool {
			return b.sumMetric(t, "berth_replica_up", fmt.Sprintf("model=%q", model), fmt.Sprintf("replica=%q", replica)) == 1
		})
	}
	for _, model := range []string{"a", "srv", "up"} {
		want(model, 1, 1)
	}
	served("a")
	served("srv")
	served("up")
	has("srv", "one.vllm.test:"+ports[1])

	failing.Store(true) // SERVFAIL: nothing changes
	want("up", 1, 0)
	d.stop(t) // the server is away: nothing changes
	want("a", 1, 0)
	want("srv", 1, 0)
	time.Sleep(3 * time.Second) // longer than keep_s
	for _, model := range []string{"a", "srv", "up"} {
		want(model, 1, 0)
		served(model)
	}
	failing.Store(false)
	d.start(t, append(targets, first, added, srv("two.vllm.test", ports[2], 20))...) // back, with other records
	want("a", 2, 1)
	want("srv", 1, 1)
	want("up", 1, 1)
	has("srv", "two.vllm.test:"+ports[2])
	served("srv")

	d.stop(t)
	d.start(t, targets...) // NXDOMAIN
	want("a", 0, 0)
	want("srv", 0, 0)
	waiting := startChat(t.Context(), client, b.url, chatBody("a", "Hello", 3, true))
	eventually(t, "a request waits for a replica", func() bool { return b.sumMetric(t, "berth_queue_length") == 1 })
	d.stop(t)
	d.start(t, first)
	if got := waitResponse(t, waiting); !got.isComplete() {
		t.Errorf("the waiting request got %v", got)
	}
	for _, line := range []string{"SERVFAIL", "its replicas are removed", "available again", "new set of replicas"} {
		if !b.stderr.contains(line) {
			t.Errorf("the log has no line with %q", line)
		}
	}
}

func TestCheckResolvesSources(t *testing.T) {
	t.Parallel()
	file := t.TempDir() + "/berth.yaml"
	replaceFile(t, file, loopbackConfig+`llm_configs:
- {model_loading_config: {model_id: m}, replicas: [{url: "http://a:1"}], file: replicas.yaml}
- {model_loading_config: {model_id: n}, dns: {name: n.test., port: 8000, server: 127.0.0.1:1}}
- {model_loading_config: {model_id: o}, simulated: {}}
`)
	status, out, log := runToExit(t, "check", "--config", file)
	if status != 0 || !strings.Contains(log, "replicas.yaml: cannot read this file") || !strings.Contains(out, "model n: replicas at the addresses (A) of n.test., port 8000") {
		t.Errorf("check without the file exited with %d:\n%s%s", status, out, log)
	}
	replicas := file[:len(file)-len("berth.yaml")] + "replicas.yaml"
	if err := os.WriteFile(replicas, []byte("- {urll: x}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if status, _, log := runToExit(t, "check", "--config", file); status == 0 || !strings.Contains(log, "replicas.yaml:1:4: unknown key urll; did you mean url?") {
		t.Errorf("check with a bad file exited with %d:\n%s", status, log)
	}
	replaceFile(t, replicas, `[{id: b, url: "http://b:1", max_ongoing_requests: 7}]`)
	status, out, log = runToExit(t, "check", "--resolve", "--config", file)
	if status == 0 || !strings.Contains(log, "1 of 2 sources gave no replicas") || !strings.Contains(out, "  b  http://b:1  7 slots\n") ||
		!strings.Contains(out, "model n, dns n.test.:8000: lookup of A n.test.: server 127.0.0.1:1:") || strings.Contains(out, "model o") {
		t.Errorf("check --resolve exited with %d:\n%s%s", status, out, log)
	}
}
