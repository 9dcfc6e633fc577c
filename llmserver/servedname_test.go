package llmserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A listingBackend responds to GET /v1/models.
type listingBackend struct {
	*fakeBackend
	status   int
	body     string
	hangs    bool
	requests []string
}

func (b *listingBackend) Do(req *http.Request, t Token) (*http.Response, Report, error) {
	b.requests = append(b.requests, req.Method+" "+req.URL.Path)
	if t != (Token{}) || req.Body != nil {
		b.violations = append(b.violations, "a list of models was requested in a slot or with a body")
	}
	if b.hangs {
		<-req.Context().Done()
		return nil, Report{}, context.Cause(req.Context())
	}
	return &http.Response{StatusCode: b.status, Body: io.NopCloser(strings.NewReader(b.body))}, Report{}, nil
}

// modelList returns a list with the given names.
func modelList(names ...string) string {
	var items []string
	for _, name := range names {
		items = append(items, fmt.Sprintf(`{"id":%q,"object":"model","owned_by":"vllm"}`, name))
	}
	return `{"object":"list","data":[` + strings.Join(items, ",") + `]}`
}

// withListingReplica runs f in a synctest bubble on a probed replica with the served name m.
// reported returns the names of each report so far.
func withListingReplica(t *testing.T, f func(r *Replica, b *listingBackend, reported func() [][]string)) {
	synctest.Test(t, func(t *testing.T) {
		b := &listingBackend{fakeBackend: newFake(1), status: http.StatusOK, body: modelList("m")}
		var reports [][]string
		p := &Pool{Dial: func(Endpoint) (Backend, error) { return b, nil }}
		p.Events.ModelUnlisted = func(e Endpoint, listed []string) {
			if e.ID != "a" || e.Model != "m" {
				t.Errorf("the report is about %s of %s", e.ID, e.Model)
			}
			reports = append(reports, listed)
		}
		e := probedEndpoint
		e.ServedName = "m"
		r := mustSet(t, p, e)[0]
		defer p.Close()
		synctest.Wait() // for the first check
		f(r, b, func() [][]string {
			synctest.Wait()
			return reports
		})
		if len(b.violations) > 0 {
			t.Error(b.violations)
		}
	})
}

// outage takes the replica down until the next good probe.
func (b *listingBackend) outage(r *Replica) {
	r.markDown(errors.New("down"))
	synctest.Wait()
}

func TestReplicaServedNameIsCheckedAtStartAndAfterEachOutage(t *testing.T) {
	withListingReplica(t, func(r *Replica, b *listingBackend, reported func() [][]string) {
		time.Sleep(time.Hour)
		reported()
		if !slices.Equal(b.requests, []string{"GET /v1/models"}) {
			t.Errorf("requests in an hour: %q", b.requests)
		}
		b.outage(r)
		if len(b.requests) != 2 || len(reported()) != 0 {
			t.Errorf("%d requests after an outage, reports %q", len(b.requests), reported())
		}
	})
}

// A list is reported once; a longer one is cut.
func TestReplicaUnlistedModelIsReportedOncePerChange(t *testing.T) {
	withListingReplica(t, func(r *Replica, b *listingBackend, reported func() [][]string) {
		want := [][]string{}
		for _, step := range []struct {
			names  []string
			report bool
		}{
			{[]string{"x", "m:y"}, true},
			{[]string{"x", "m:y"}, false},
			{[]string{"x"}, true},
			{[]string{"x", "m"}, false},
			{[]string{"x"}, true},
			{[]string{}, true},
			{[]string{"m:latest"}, false},
			{strings.Split("a b c d e f g h i j k l", " "), true},
		} {
			b.body = modelList(step.names...)
			b.outage(r)
			if step.report {
				want = append(want, step.names[:min(len(step.names), 10)])
			}
			if got := reported(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("after %q: reports %q, want %q", step.names, got, want)
			}
			listed, unlisted := r.UnlistedModel()
			if has := slices.Contains(step.names, "m") || slices.Contains(step.names, "m:latest"); unlisted == has || unlisted && len(listed) != min(len(step.names), 10) {
				t.Errorf("after %q: unlisted %t with %q", step.names, unlisted, listed)
			}
		}
	})
}

func TestReplicaChangedServedNameIsChecked(t *testing.T) {
	withListingReplica(t, func(r *Replica, b *listingBackend, reported func() [][]string) {
		reported()
		e := r.Endpoint()
		e.ServedName = "other"
		r.describe(e)
		time.Sleep(e.ProbeEvery)
		if got := reported(); len(got) != 1 || len(b.requests) != 2 {
			t.Errorf("reports %q after %q", got, b.requests)
		}
	})
}

// Nothing is known then, and the replica stays up.
func TestReplicaWithoutAListOfModelsIsNotReported(t *testing.T) {
	withListingReplica(t, func(r *Replica, b *listingBackend, reported func() [][]string) {
		for _, c := range []struct {
			status int
			body   string
		}{
			{http.StatusNotFound, modelList("x")},
			{http.StatusInternalServerError, modelList("x")},
			{http.StatusOK, "ok"},
			{http.StatusOK, "[]"},
			{http.StatusOK, "{}"},
			{http.StatusOK, `{"data":null}`},
			{http.StatusOK, `{"data":[{"id":3}]}`},
			{http.StatusOK, strings.Repeat(" ", maxModelsBody) + modelList("x")},
			{http.StatusOK, `{"data":[{"id":"/models/x.gguf","owned_by":"llamacpp"}]}`},
		} {
			b.status, b.body = c.status, c.body
			b.outage(r)
			if got := reported(); len(got) > 0 || !r.Available() {
				t.Fatalf("after %d %.40q: reports %q, available %t", c.status, c.body, got, r.Available())
			}
		}
	})
}

// The replica is up before the list has come, and is probed again after the timeout.
func TestReplicaServedNameCheckIsBounded(t *testing.T) {
	withListingReplica(t, func(r *Replica, b *listingBackend, _ func() [][]string) {
		b.hangs = true
		probes := new(atomic.Int32)
		b.probe = func(context.Context) error { probes.Add(1); return nil }
		b.outage(r)
		if !r.Available() || len(b.requests) != 2 {
			t.Fatalf("available %t, requests %q", r.Available(), b.requests)
		}
		before := probes.Load()
		time.Sleep(probedEndpoint.ProbeTimeout + probedEndpoint.ProbeEvery)
		synctest.Wait()
		if n := probes.Load(); n == before || len(b.requests) != 2 || !r.Available() {
			t.Errorf("%d probes after %d, %d requests, available %t", n, before, len(b.requests), r.Available())
		}
	})
}
