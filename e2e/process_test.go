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

// anywhere has berth listen on free ports of the loopback.
const anywhere = `
http: {address: "127.0.0.1:0"}
admin: {address: "127.0.0.1:0"}
`

// berth is a running `berth serve`.
type berth struct {
	*command
	url   string // where clients are served
	admin string // where operators are
	file  string // its configuration
}

var (
	servesLine = regexp.MustCompile(`(?m)^berth serves (https?://\S+)/v1$`)
	adminLine  = regexp.MustCompile(`(?m)^admin +(http://\S+)$`)
)

// serve starts berth with a configuration and waits until it is ready. When the test is over, it must come to rest.
func serve(t *testing.T, config string) *berth {
	t.Helper()
	return serveBy(t, build, config)
}

// serveBy is serve with the binary that is built so.
func serveBy(t *testing.T, build func() (binary string, err error), config string) *berth {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "berth.yaml")
	replace(t, file, config)
	b := listening(t, run(t, "", binary, "serve", "--config", file))
	b.file = file
	t.Cleanup(func() { b.rest(t) })
	eventually(t, "berth is ready", func() bool { return b.get(t, b.url+"/readyz").status == http.StatusOK })
	return b
}

// listening waits until berth has said where it listens.
func listening(t *testing.T, c *command) *berth {
	t.Helper()
	eventually(t, "berth says where it listens", func() bool {
		select {
		case <-c.done:
			t.Fatal("berth ended at once")
		default:
		}
		return c.out.has("}'\n") // the end of the curl line, which is the last one
	})
	said := c.out.String()
	public, admin := servesLine.FindStringSubmatch(said), adminLine.FindStringSubmatch(said)
	if public == nil || admin == nil {
		t.Fatalf("berth does not say where it listens but %q", said)
	}
	return &berth{command: c, url: public[1], admin: admin[1]}
}

// rest sees that everything was given back, and has berth end.
func (b *berth) rest(t *testing.T) {
	select {
	case <-b.done:
		b.sane(t)
		return
	default:
	}
	if t.Failed() {
		return // it is killed, and its log shown
	}
	eventually(t, "all slots and bytes are given back", func() bool {
		return b.sum(t, "berth_slots") == 0 && b.sum(t, "berth_buffered_bytes") == 0 && b.sum(t, "berth_queue_length") == 0
	})
	if slots := string(b.get(t, b.admin+"/internal/slots").body); strings.TrimSpace(slots) != `{"slots":[]}` {
		t.Errorf("slots left behind: %s", slots)
	}
	b.signal(t, syscall.SIGTERM)
	if status := b.status(t); status != 0 {
		t.Errorf("berth ended with status %d, want 0", status)
	}
	b.sane(t)
}

// sane sees that the log tells of no mistake in the program.
func (b *berth) sane(t *testing.T) {
	for _, mistake := range []string{"DATA RACE", "panic", "BUG: ", "fatal error"} {
		if b.log.has(mistake) {
			t.Errorf("the log of berth has %q", mistake)
		}
	}
}

// get asks for a page on a connection of its own. Where there is none to be had, the status is 0.
func (b *berth) get(t *testing.T, url string) answer {
	t.Helper()
	ctx, stop := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // cleanups ask too
	defer stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}).RoundTrip(req)
	if err != nil {
		return answer{err: err}
	}
	return read(resp)
}

// sum adds up the samples of a metric that have all these labels, written as in model="demo".
func (b *berth) sum(t *testing.T, name string, labels ...string) (sum float64) {
	t.Helper()
	page := b.get(t, b.admin+"/metrics")
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
		if series != name || !hasAll(set, labels) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("/metrics: %s: %v", lines.Text(), err)
		}
		sum, found = sum+v, true
	}
	if !found && len(labels) == 0 {
		t.Fatalf("/metrics has no %s", name)
	}
	return sum
}

func hasAll(set string, labels []string) bool {
	for _, l := range labels {
		if !strings.Contains(","+set+",", ","+l+",") {
			return false
		}
	}
	return true
}

// replace changes a file as a swapped link does: readers see the old content or the new.
func replace(t *testing.T, file, content string) {
	t.Helper()
	fresh, err := os.CreateTemp(filepath.Dir(file), "next-")
	if err != nil {
		t.Fatal(err)
	}
	_, err = io.WriteString(fresh, content)
	if closed := fresh.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(fresh.Name(), file)
	}
	if err != nil {
		t.Fatal(err)
	}
}
