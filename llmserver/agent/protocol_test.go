package agent

import (
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"berth/llmserver"
)

// Requests carry the engine's key; control calls carry the slot secret.
func TestClientSendsKeyAndSecretSeparately(t *testing.T) {
	var wrong atomic.Int64
	url := scriptedAgent(t, func(w http.ResponseWriter, r *http.Request) {
		control := strings.HasPrefix(r.URL.Path, "/internal/") || r.URL.Path == "/health"
		if control != (r.Header.Get("Authorization") == "") || strings.HasPrefix(r.URL.Path, "/internal/") != (r.Header.Get(headerSecret) == "sesame") {
			wrong.Add(1)
		}
		io.WriteString(w, `{"accepted":true,"instance":"i"}`)
	})
	c := dial(t, url, "sesame")
	c.Reserve(t.Context(), uuid.New(), 0)
	c.Cancel(t.Context(), uuid.New())
	c.Probe(t.Context())
	if resp, _, err := c.Do(chatRequest(t.Context()), uuid.New()); err != nil {
		t.Error(err)
	} else {
		resp.Body.Close()
	}
	if n := wrong.Load(); n != 0 {
		t.Errorf("%d calls bore what they should not, or not what they should", n)
	}
}

// An impossible report is ignored.
func TestAgentInvalidReportHeaderIsIgnored(t *testing.T) {
	good := func() http.Header {
		h := http.Header{}
		setReportHeader(h, llmserver.Report{Ongoing: 3, Instance: "i", Seq: 7, Own: 2})
		return h
	}
	if r, ok := parseReportHeader(good()); !ok || r != (llmserver.Report{Ongoing: 3, Instance: "i", Seq: 7, Own: 2}) {
		t.Errorf("%+v, %t", r, ok)
	}
	for name, values := range map[string][]string{
		headerOngoing: {"", "x", "-1", "1.5"}, headerInstance: {""}, headerOwn: {"", "x", "-1"}, headerSeq: {"", "-1", "18446744073709551616"},
	} {
		for _, value := range values {
			h := good()
			h.Set(name, value)
			if r, ok := parseReportHeader(h); ok || r != (llmserver.Report{}) {
				t.Errorf("%s: %q is read as %+v", name, value, r)
			}
		}
	}
}
