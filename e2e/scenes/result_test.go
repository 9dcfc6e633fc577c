package scenes

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// at returns a time of the made-up scenes, in seconds from the begin of the fault.
func at(seconds float64) time.Time {
	return time.Unix(1000, 0).Add(time.Duration(math.Round(seconds*1000)) * time.Millisecond)
}

// sceneOf returns a scene of five seconds in which requests arrived at the sick engine at the given
// times. Those with a failure text failed, in the same order.
func sceneOf(fault Fault, begun int, times []float64, failures ...string) *scene {
	log := new(arrivals)
	s := &scene{fault: fault, sick: &member{name: "sick", sent: log, worked: log}, begin: at(0), end: at(5), begun: begun}
	for i, t := range times {
		r := Response{ID: i, Sent: at(t), Ended: at(t + 0.2), Engine: "sick"}
		if i < len(failures) {
			r.Failure, r.Engine = failures[i], ""
		}
		log.all = append(log.all, arrival{id: i, at: at(t)})
		s.responses = append(s.responses, r)
	}
	return s
}

func TestResultTimesAreFromArrivalsAndGoodResponses(t *testing.T) {
	for name, tc := range map[string]struct {
		times     []float64
		failures  int
		out, back time.Duration
	}{
		"trials":          {[]float64{-1, 0, 0.2, 0.6, 1.6, 2.6, 3.6, 4.6, 5.5}, 8, 600 * time.Millisecond, 700 * time.Millisecond},
		"never out":       {[]float64{0.1, 0.6, 1.1, 1.6, 2.1, 2.6, 3.1, 3.6, 4.1, 4.6, 5.1}, 10, Never, 300 * time.Millisecond},
		"nothing arrives": {[]float64{-1, 8}, 0, 0, 3200 * time.Millisecond},
		"never back":      {[]float64{-1, 0.5, 6}, 3, 0, Never},
		"held requests":   {[]float64{0.1, 0.2, 4.9, 7}, 0, 200 * time.Millisecond, 2200 * time.Millisecond}, // the one at 4.9 s ends after the fault
	} {
		failures := make([]string, tc.failures)
		for i := range failures {
			failures[i] = "status 500"
		}
		r := sceneOf(ServerError, 0, tc.times, failures...).result()
		if r.Out != tc.out || r.Back != tc.back || r.FailedRequests != tc.failures {
			t.Errorf("%s: out %v, back %v, %d failures; want %v, %v, %d", name, r.Out, r.Back, r.FailedRequests, tc.out, tc.back, tc.failures)
		}
	}
}

func TestResultMissesGoals(t *testing.T) {
	good := Result{Fault: ServerError, FailedRequests: 3, FailedStreams: 2, BegunStreams: 2, Out: 2 * time.Second, Back: 2 * time.Second}
	for name, tc := range map[string]struct {
		change func(r *Result)
		want   int
	}{
		"the goals themselves":    {func(*Result) {}, 0},
		"a failed request more":   {func(r *Result) { r.FailedRequests++ }, 1},
		"a failed stream more":    {func(r *Result) { r.FailedStreams++ }, 1},
		"a stream broken":         {func(r *Result) { r.FailedStreams++; r.BrokenStreams++ }, 0},
		"late":                    {func(r *Result) { r.Out, r.Back = 2100*time.Millisecond, 2100*time.Millisecond }, 2},
		"never":                   {func(r *Result) { r.Out, r.Back = Never, Never }, 2},
		"silent":                  {func(r *Result) { r.Fault, r.Out = Hang, 10*time.Second }, 0},
		"restarted":               {func(r *Result) { r.Fault, r.Back = Killed, 1100*time.Millisecond }, 1},
		"slow with failures":      {func(r *Result) { r.Fault = Slow }, 2},
		"slow and used meanwhile": {func(r *Result) { *r = Result{Fault: Slow, Out: Never, Back: Never, BegunStreams: 1} }, 0},
	} {
		r := good
		tc.change(&r)
		if missed := r.Missed(1); len(missed) != tc.want {
			t.Errorf("%s: missed %q, want %d", name, missed, tc.want)
		}
		if bold := strings.HasPrefix(r.cell(), "**"); bold != (tc.want > 0) {
			t.Errorf("%s: the cell is %q", name, r.cell())
		}
	}
	late := good
	late.Out = 3 * time.Second
	if missed := late.Missed(2); len(missed) != 0 {
		t.Errorf("with slack: missed %q", missed)
	}
}

func TestTableHasARowForEachFaultThatWasMeasured(t *testing.T) {
	results := map[Fault]Result{NotFound: {Fault: NotFound, FailedRequests: 4, Out: Never, Back: time.Second}, Slow: {Fault: Slow, Share: 0.25}}
	got := Table([]Column{{"first", results}, {"second", nil}})
	want := "| fault | first | second |\n|---|---|---|\n| 404 for the model | **4 · 0 (0) · – · 1.0** | |\n| 10 × slower | 0 · 0 (0) · 25 % of requests | |\n"
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestTableReplacesTheSectionOfAFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "page.md")
	os.WriteFile(file, []byte("before\n\n<!-- a -->\nstale\n<!-- /a -->\n\nafter\n"), 0o644)
	for range 2 {
		if err := WriteSection(file, "a", "fresh\n"); err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := os.ReadFile(file); string(got) != "before\n\n<!-- a -->\n\nfresh\n\n<!-- /a -->\n\nafter\n" {
		t.Errorf("the file has %q", got)
	}
	if err := WriteSection(file, "b", "fresh"); err == nil {
		t.Error("no error for a section that the file lacks")
	}
}
