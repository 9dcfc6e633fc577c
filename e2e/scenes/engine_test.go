package scenes

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if ServeEngine() {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// What clients without a router see of each fault, and that the engine recovers from it.
func TestFaultsAreSeenByClientsAndEnd(t *testing.T) {
	t.Parallel()
	for fault, want := range map[Fault]string{
		ServerError: "status 500", NotFound: "status 404", Unavailable: "status 503", Loading: "status 503", QueueFull: "status 503",
		MidStream: "unexpected EOF", Garbage: "malformed HTTP", Refused: "connection refused", Break: "EOF", Slow: "",
	} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			e, err := StartEngine("lone")
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close()
			c := NewClient(e.URL())
			defer c.Close()
			if err := e.Begin(fault); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond) // Refused closes the listener in the background
			for _, stream := range []bool{false, true} {
				r := c.Send(t.Context(), Call{Stream: stream})
				if (want == "") != (r.Failure == "") || !strings.Contains(r.Failure, want) {
					t.Errorf("stream %t: failure %q, want %q", stream, r.Failure, want)
				}
				if fault == MidStream && stream != r.Begun {
					t.Errorf("stream %t: begun is %t", stream, r.Begun)
				}
			}
			if resp, err := http.Get(e.URL() + "/health"); fault != Refused && (err != nil || resp.StatusCode != http.StatusOK) {
				t.Errorf("/health during the fault: %v", err)
			}
			if err := e.End(); err != nil {
				t.Fatal(err)
			}
			if r := c.Send(t.Context(), Call{}); r.Failure != "" || r.Engine != "lone" || e.ArrivalsOf(r) != 1 {
				t.Errorf("after the fault: failure %q of engine %q, %d arrivals", r.Failure, r.Engine, e.ArrivalsOf(r))
			}
		})
	}
}

func TestFaultOfAPromptHitsThatPromptAlone(t *testing.T) {
	t.Parallel()
	e, err := StartEngine("lone")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	c := NewClient(e.URL())
	defer c.Close()
	for fault, want := range map[Fault]string{ServerError: "status 500", Break: "EOF", "": ""} {
		if r := c.Send(t.Context(), Call{Poison: fault}); r.Failure != want || e.ArrivalsOf(r) != 1 {
			t.Errorf("%q: failure %q, want %q; %d arrivals", fault, r.Failure, want, e.ArrivalsOf(r))
		}
	}
}

// A scene without a router in between: all requests go to the engine that fails.
func TestSceneOfAProcessIsMeasuredAtClientsAndEngine(t *testing.T) {
	t.Parallel()
	o := Options{Rate: 50, WarmUp: time.Second, Fault: 1500 * time.Millisecond, Silent: 1500 * time.Millisecond, After: time.Second}
	for _, fault := range []Fault{Hang, Killed, Stopped} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			fleet, err := StartFleet(fault)
			if err != nil {
				t.Fatal(err)
			}
			defer fleet.Close()
			r, err := Run(t.Context(), fleet.URLs()[0], fleet, o)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r)
			failed := r.FailedRequests + r.FailedStreams
			switch {
			case r.Back == Never || r.BegunStreams == 0:
				t.Error("the engine was not used again, or no stream was in progress when the fault began")
			case fault == Killed && (failed < 30 || r.Share > 0.05 || r.Out != 0):
				t.Errorf("%d failed, share %.2f, out %v; want those of 1.5 s at least, and nothing at the engine", failed, r.Share, r.Out)
			case fault != Killed && (failed != 0 || r.Share < 0.9 || r.Out != Never):
				t.Errorf("%d failed, share %.2f, out %v; want none, as all are held, and all at the engine", failed, r.Share, r.Out)
			}
		})
	}
}
