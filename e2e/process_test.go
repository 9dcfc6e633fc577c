package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// loopbackConfig makes berth listen on free loopback ports.
const loopbackConfig = `
http: {address: "127.0.0.1:0"}
admin: {address: "127.0.0.1:0"}
`

// berth is a `berth serve` process.
type berth struct {
	*command
	url   string // of the public listener
	admin string // of the admin listener
	file  string // configuration file
}

var (
	publicLine = regexp.MustCompile(`(?m)^berth serves (https?://\S+)/v1$`)
	adminLine  = regexp.MustCompile(`(?m)^admin +(http://\S+)$`)
)

// serve starts berth with a configuration and waits until berth is ready. Cleanup checks that slots
// and buffers are released and that berth exits with status 0.
func serve(t *testing.T, config string) *berth {
	t.Helper()
	return serveBinary(t, buildBerth, config)
}

// serveBinary is serve with the binary that buildBinary returns.
func serveBinary(t *testing.T, buildBinary func() (binary string, err error), config string) *berth {
	t.Helper()
	binary, err := buildBinary()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "berth.yaml")
	replaceFile(t, file, config)
	b := waitListening(t, startCommand(t, "", binary, "serve", "--config", file))
	b.file = file
	t.Cleanup(func() { b.checkIdleAndStop(t) })
	eventually(t, "berth is ready", func() bool { return b.getPage(t, b.url+"/readyz").status == http.StatusOK })
	return b
}

// waitListening waits until berth has printed the addresses of its listeners.
func waitListening(t *testing.T, c *command) *berth {
	t.Helper()
	eventually(t, "berth prints its addresses", func() bool {
		select {
		case <-c.done:
			t.Fatal("berth exited before listening")
		default:
		}
		return c.stdout.contains("}'\n") // the curl command is the last line
	})
	output := c.stdout.String()
	public, admin := publicLine.FindStringSubmatch(output), adminLine.FindStringSubmatch(output)
	if public == nil || admin == nil {
		t.Fatalf("no listen addresses in the output %q", output)
	}
	return &berth{command: c, url: public[1], admin: admin[1]}
}

// checkIdleAndStop checks that all slots and buffers are released and nothing is queued, then stops
// berth and checks its exit status and log.
func (b *berth) checkIdleAndStop(t *testing.T) {
	select {
	case <-b.done:
		b.checkLog(t)
		return
	default:
	}
	if t.Failed() {
		return // Cleanup of the command kills the process and logs its output
	}
	eventually(t, "all slots and buffers are released and the queue is empty", func() bool {
		return b.sumMetric(t, "berth_slots") == 0 && b.sumMetric(t, "berth_buffered_bytes") == 0 && b.sumMetric(t, "berth_queue_length") == 0
	})
	if slots := string(b.getPage(t, b.admin+"/internal/slots").body); strings.TrimSpace(slots) != `{"slots":[],"waiting":[],"waiting_omitted":0}` {
		t.Errorf("slots not released: %s", slots)
	}
	b.signal(t, syscall.SIGTERM)
	if status := b.waitExit(t); status != 0 {
		t.Errorf("berth exited with status %d, want 0", status)
	}
	b.checkLog(t)
}

// checkLog checks that the log contains no panic, data race or BUG.
func (b *berth) checkLog(t *testing.T) {
	for _, pattern := range []string{"DATA RACE", "panic", "BUG: ", "fatal error"} {
		if b.stderr.contains(pattern) {
			t.Errorf("berth's log contains %q", pattern)
		}
	}
}

// getPage sends a GET request on a new connection. The status is 0 if there is no response.
func (b *berth) getPage(t *testing.T, url string) response {
	t.Helper()
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), waitTimeout) // t.Context is done during Cleanup
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}).RoundTrip(req)
	if err != nil {
		return response{err: err}
	}
	return readResponse(resp)
}

// sumMetric returns the sum of a metric's samples that have all the given labels. Labels have the
// form model="demo". A metric without samples is an error if no labels are given.
func (b *berth) sumMetric(t *testing.T, name string, labels ...string) (sum float64) {
	t.Helper()
	page := b.getPage(t, b.admin+"/metrics")
	if page.status != http.StatusOK {
		t.Fatalf("/metrics: %d %v", page.status, page.err)
	}
	found := false
	for lines := bufio.NewScanner(strings.NewReader(string(page.body))); lines.Scan(); {
		sample, value, _ := strings.Cut(lines.Text(), "} ")
		series, set, labelled := strings.Cut(sample, "{")
		if !labelled {
			series, value, _ = strings.Cut(lines.Text(), " ")
		}
		if series != name || !hasLabels(set, labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("/metrics: %s: %v", lines.Text(), err)
		}
		sum, found = sum+v, true
	}
	if !found && len(labels) == 0 {
		t.Fatalf("/metrics lacks %s", name)
	}
	return sum
}

// hasLabels reports whether a sample's label set contains all labels.
func hasLabels(set string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(","+set+",", ","+l+",") {
			return false
		}
	}
	return true
}

// replaceFile replaces the content of a file atomically, by rename.
func replaceFile(t *testing.T, file, content string) {
	t.Helper()
	temp, err := os.CreateTemp(filepath.Dir(file), "next-")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(temp, content)
	if closeErr := temp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Rename(temp.Name(), file)
	}
	if err != nil {
		t.Fatal(err)
	}
}
