package ingress

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// newTestReplica returns a replica that is never called.
func newTestReplica(t *testing.T, id string) *llmserver.Replica {
	t.Helper()
	e := llmserver.Endpoint{Model: "m", ID: id, URL: "http://127.0.0.1:1", Limit: 1}
	backend, err := llmserver.DialHTTP(e)
	if err != nil {
		t.Fatal(err)
	}
	return llmserver.NewReplica(e, backend)
}

// untimed returns the lines of a text log without their times.
func untimed(text string) (lines []string) {
	for line := range strings.Lines(text) {
		_, line, _ = strings.Cut(strings.TrimSpace(line), " ")
		lines = append(lines, line)
	}
	return lines
}

func TestStateLogHasOneLineForEachChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := new(record)
		l := newStateLog(slog.New(slog.NewTextHandler(text, nil)))
		r, state, since := newTestReplica(t, "a"), "serving", time.Now()
		change := func(to, reason string) {
			now := time.Now()
			l.report(llmserver.StateChange{Replica: r, From: state, To: to, Reason: reason, At: now, Lasted: now.Sub(since)})
			state, since = to, now
		}
		want := func(lines ...string) {
			t.Helper()
			if got := untimed(text.take()); strings.Join(got, "\n") != strings.Join(lines, "\n") {
				t.Errorf("logged\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(lines, "\n"))
			}
		}
		time.Sleep(time.Minute)
		change("down", "no connection: refused")
		time.Sleep(1234 * time.Millisecond)
		change("serving", "a health check succeeded")
		change("draining", "draining")
		change("serving", "the drain has ended")
		want(`level=WARN msg="replica state changed" replica=a model=m from=serving to=down reason="no connection: refused" lasted=1m0s`,
			`level=INFO msg="replica state changed" replica=a model=m from=down to=serving reason="a health check succeeded" lasted=1.2s`,
			`level=INFO msg="replica state changed" replica=a model=m from=serving to=draining reason=draining lasted=0s`,
			`level=INFO msg="replica state changed" replica=a model=m from=draining to=serving reason="the drain has ended" lasted=0s`)

		change("ejected", "sick")
		want(`level=WARN msg="replica state changed" replica=a model=m from=serving to=ejected reason=sick lasted=0s`)
		for range 100 { // one trial a second
			time.Sleep(time.Second)
			change("half_open", "a trial")
			change("ejected", "sick")
		}
		want(`level=WARN msg="replica fails its trials" replica=a model=m failed_trials=30 reason=sick ejected_for=30s`,
			`level=WARN msg="replica fails its trials" replica=a model=m failed_trials=30 reason=sick ejected_for=1m0s`,
			`level=WARN msg="replica fails its trials" replica=a model=m failed_trials=30 reason=sick ejected_for=1m30s`)
		change("half_open", "a trial")
		change("serving", "a request succeeded")
		want(`level=INFO msg="replica state changed" replica=a model=m from=ejected to=serving reason="a request succeeded" lasted=1m40s failed_trials=100`)
		change("ejected", "sick")
		change("half_open", "a trial")
		change("down", "no connection")
		change("half_open", "a trial")
		change("draining", "replica removed")
		want(`level=WARN msg="replica state changed" replica=a model=m from=serving to=ejected reason=sick lasted=0s`,
			`level=WARN msg="replica state changed" replica=a model=m from=ejected to=down reason="no connection" lasted=0s failed_trials=0`,
			`level=INFO msg="replica state changed" replica=a model=m from=down to=half_open reason="a trial" lasted=0s`,
			`level=INFO msg="replica state changed" replica=a model=m from=ejected to=draining reason="replica removed" lasted=0s failed_trials=0`)
		if len(l.ejected) != 0 {
			t.Errorf("%d ejections are kept", len(l.ejected))
		}
	})
}

// From the fault to the line.
func TestStateLogNamesAReplicaThatIsGone(t *testing.T) {
	gone := refusing(1)
	m := modelOn("m", gone, upstream(t, ok))
	f := serve(t, m)
	for range 4 {
		if got := f.chat("m"); got.StatusCode != http.StatusOK {
			t.Fatalf("status %d", got.StatusCode)
		}
	}
	var text string
	f.eventually("one line names the replica", func() bool {
		text += f.log.take()
		return strings.Count(text, `msg="replica state changed" replica=a model=m from=serving to=down reason="no connection`) == 1
	})
}
