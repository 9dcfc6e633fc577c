package llmserver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// newTestPool is a pool on fakes, which are found by the replica's ID.
func newTestPool() (*Pool, map[string]*fakeBackend) {
	fakes := make(map[string]*fakeBackend)
	return &Pool{Dial: func(e Endpoint) (Backend, error) {
		if e.URL == "" {
			return nil, errors.New("no URL")
		}
		fakes[e.ID] = newFake(100)
		return fakes[e.ID], nil
	}}, fakes
}

func endpoint(id string) Endpoint {
	return Endpoint{Model: "m", ID: id, URL: "http://" + id, Limit: 2}
}

// mustSet sets and retires at once.
func mustSet(t *testing.T, p *Pool, endpoints ...Endpoint) []*Replica {
	t.Helper()
	replicas, retire, err := p.Set(endpoints)
	if err != nil {
		t.Fatal(err)
	}
	retire()
	return replicas
}

func TestARenamedOrRecappedReplicaKeepsItsPointerAndItsCounts(t *testing.T) {
	p, fakes := newTestPool()
	defer p.Close()
	a := mustSet(t, p, endpoint("a"), endpoint("b"))[0]
	s := claim(t, a)
	changed := endpoint("a")
	changed.ID, changed.Limit, changed.APIKey = "renamed", 7, "key"
	got := mustSet(t, p, endpoint("b"), changed)
	if got[1] != a || a.ID() != "renamed" || a.Load() != 1 || a.Usage().Limit != 7 {
		t.Errorf("%p %q with load %d and limit %d; want %p renamed, 1, 7", got[1], a.ID(), a.Load(), a.Usage().Limit, a)
	}
	if d := fakes["a"].described; d[len(d)-1] != changed {
		t.Errorf("the backend was last told %+v", d[len(d)-1])
	}
	s.Release()
}

func TestAnotherProcessIsAnotherReplica(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	first := endpoint("a")
	first.Instance = "one"
	old := mustSet(t, p, first)[0]
	s := claim(t, old)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	second := first
	second.Instance = "two"
	reborn := mustSet(t, p, second)[0]
	if reborn == old || reborn.Load() != 0 {
		t.Fatalf("the new process is %p with load %d; the old one is %p", reborn, reborn.Load(), old)
	}
	other := claim(t, reborn)
	if got := p.Leaving(); !slices.Equal(got, []*Replica{old}) {
		t.Errorf("leaving: %v", got)
	}
	s.Release() // late: it touches nothing of the new one
	wantUsage(t, old, 0, 0)
	wantUsage(t, reborn, 1, 0)
	if _, err := old.Claim("late", 0); !errors.Is(err, ErrGone) {
		t.Errorf("Claim on the old process = %v", err)
	}
	if got := p.Leaving(); len(got) != 0 {
		t.Errorf("leaving although idle: %v", got)
	}
	other.Release()
}

func TestABadSetChangesNothing(t *testing.T) {
	for name, c := range map[string]struct {
		bad  Endpoint
		says string
	}{
		"two of one identity": {Endpoint{Model: "m", ID: "c", URL: "http://a"}, "http://a"},
		"not to be dialled":   {Endpoint{Model: "m", ID: "c"}, "replica c: no URL"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _ := newTestPool()
			defer p.Close()
			before := mustSet(t, p, endpoint("a"), endpoint("b"))
			recapped := endpoint("a")
			recapped.Limit = 9
			_, _, err := p.Set([]Endpoint{recapped, c.bad})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Fatalf("Set = %v; want it to say %q", err, c.says)
			}
			if before[0].Usage().Limit != 2 || !before[1].Available() {
				t.Error("the bad set had an effect")
			}
			if after := mustSet(t, p, endpoint("a"), endpoint("b")); !slices.Equal(after, before) {
				t.Error("the replicas are not the same")
			}
		})
	}
}

func TestAReplicaThatIsNoLongerNamedServesUntilItIsRetired(t *testing.T) {
	p, fakes := newTestPool()
	a := mustSet(t, p, endpoint("a"))[0]
	_, retire, err := p.Set(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := claim(t, a)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	retire()
	if _, err := a.Claim("late", 0); !errors.Is(err, ErrGone) || a.Available() || a.Said() != ErrGone.Error() {
		t.Errorf("Claim = %v, available %t, said %q", err, a.Available(), a.Said())
	}
	wantUsage(t, a, 0, 1)
	if fakes["a"].closed == 0 {
		t.Error("its idle connections are kept")
	}
	s.Release()
	p.Close()
	retire() // late
}

func TestABusyReplicaThatComesBackKeepsItsRequests(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	a := mustSet(t, p, endpoint("a"))[0]
	s := claim(t, a)
	mustSet(t, p)
	if got := mustSet(t, p, endpoint("a"))[0]; got != a || !got.Available() || got.Load() != 1 {
		t.Fatalf("it came back as %p with load %d; want %p, 1", got, got.Load(), a)
	}
	if err := s.Start(); err != nil {
		t.Error(err)
	}
	s.Release()
	mustSet(t, p)
	if got := mustSet(t, p, endpoint("a"))[0]; got == a {
		t.Error("an idle replica that had left came back as the same")
	}
}

func TestALateRetireSparesWhatHasComeBack(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	a := mustSet(t, p, endpoint("a"))[0]
	s := claim(t, a)
	_, early, _ := p.Set(nil)
	mustSet(t, p, endpoint("a"))
	early()
	if !a.Available() {
		t.Error("the replica that came back was retired")
	}
	_, late, _ := p.Set(nil)
	early()
	late()
	if a.Available() {
		t.Error("it was not retired")
	}
	s.Release()
}

func TestClosingAPoolWaitsForTheCancelsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failed []string
		p, fakes := newTestPool()
		p.Events.CancelFailed = func(replica string, err error) { failed = append(failed, replica+": "+err.Error()) }
		a := mustSet(t, p, endpoint("a"))[0]
		fakes["a"].deaf = true
		claim(t, a).Release()
		began := time.Now()
		p.Close()
		if took := time.Since(began); took != cancelTimeout {
			t.Errorf("Close took %v; want %v", took, cancelTimeout)
		}
		if want := []string{"a: " + context.DeadlineExceeded.Error()}; !slices.Equal(failed, want) {
			t.Errorf("failed cancels: %q; want %q", failed, want)
		}
	})
}
