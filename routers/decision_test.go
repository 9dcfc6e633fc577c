package routers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"berth/llmserver"
)

// told hears how each request came by its slot, in words: "a 1 0 of 3" is the replica, its rank and the match, and
// what follows are the candidates and who was preferred in vain.
type told struct {
	most  int
	lines []string
}

func (d *told) hooks() Hooks {
	return Hooks{Decided: func(by Decision) {
		line := fmt.Sprintf("%s %d %d of %d:", by.Replica.ID(), by.Rank, by.Matched, len(by.Payload.Blocks))
		all, preferred, lost := by.Explain(nil, d.most)
		for _, c := range all {
			line += fmt.Sprintf(" %s/%d/%d/%d", c.Replica.ID(), c.Rank, c.Load, c.Matched)
			if c.State != Free {
				line += " " + c.State
			}
		}
		if preferred != nil {
			line += "; not " + preferred.ID() + " " + lost
		}
		d.lines = append(d.lines, line)
	}}
}

func (d *told) want(t *testing.T, lines ...string) {
	t.Helper()
	if !slices.Equal(d.lines, lines) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(d.lines, "\n"), strings.Join(lines, "\n"))
	}
	d.lines = nil
}

func TestDecisionExplainsCandidatesAndWhyThePreferredLost(t *testing.T) {
	f, d := newFleet(t, 1, 9, 9, 9), &told{most: 9}
	r := New(f.replicas, newByText, roomy, d.hooks())
	mustChoose(t, r, "ab")
	d.want(t, "a 1 0 of 0: a/1/0/0 chosen b/2/0/0 c/0/0/0 d/0/0/0")
	mustChoose(t, r, "abc")
	d.want(t, "b 2 0 of 0: a/1/1/0 full b/2/0/0 chosen c/3/0/0 d/0/0/0; not a full")
	f.replicas[2].Drain()
	mustChoose(t, r, "dcb", f.replicas[3])
	d.want(t, "b 2 0 of 0: d/1/0/0 tried b/2/1/0 chosen a/0/1/0 full c/0/0/0 draining; not d tried")
	mustChoose(t, r, "")
	d.want(t, "d 1 0 of 0: a/1/1/0 full b/1/2/0 d/1/0/0 chosen c/0/0/0 draining")
	d.most = 2
	mustChoose(t, r, "adb")
	d.want(t, "d 2 0 of 0: a/1/1/0 full d/2/1/0 chosen; not a full")
	if got := r.Ranks(); got != [4]uint64{2, 3, 0, 0} {
		t.Errorf("the ranks were %v", got)
	}
}

func TestDecisionAfterAWaitHasTheRankOfItsSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, d := newFleet(t, 1, 1), &told{most: 9}
		r := New(f.replicas, newByText, roomy, d.hooks())
		mustChoose(t, r, "a")
		held := mustChoose(t, r, "b")
		d.lines = nil
		q := startChoose(t, r, "ab")
		synctest.Wait()
		serve(t, held)
		<-q.done
		d.want(t, "b 2 0 of 0: a/1/1/0 full b/2/0/0 chosen; not a full")
		if q.sel.Rank() != 2 || r.Ranks() != [4]uint64{2, 1, 0, 0} {
			t.Errorf("its rank is %d, and all are %v", q.sel.Rank(), r.Ranks())
		}
	})
}

func TestDecisionPrefersTheOwnerOfASessionEvenIfNotRanked(t *testing.T) {
	f, d := newFleet(t, 9, 9, 9), &told{most: 0}
	r := New(f.replicas, ConsistentHash(DefaultHashOptions, func() uint64 { return 0 }), roomy, d.hooks())
	owner := chooseSession(t, r, "s").Replica()
	d.want(t, owner.ID()+" 1 0 of 0:")
	owner.Drain()
	next := chooseSession(t, r, "s")
	d.want(t, fmt.Sprintf("%s 1 0 of 0:; not %s draining", next.Replica().ID(), owner.ID()))
	chooseSession(t, r, "")
	if len(d.lines) != 1 || strings.Contains(d.lines[0], "not") {
		t.Errorf("without a session there is %q", d.lines)
	}
}

func TestDecisionReportsAReplicaOverTheBound(t *testing.T) {
	f, d := newFleet(t, 99, 99, 99), &told{most: 0}
	r := New(f.replicas, ConsistentHash(HashOptions{VirtualNodes: 100, MaxLoadFactor: 1}, func() uint64 { return 0 }), roomy, d.hooks())
	owner := chooseSession(t, r, "s").Replica()
	for range minBound - 1 {
		chooseSession(t, r, "s")
	}
	d.lines = nil
	next := chooseSession(t, r, "s").Replica()
	d.want(t, fmt.Sprintf("%s 1 0 of 0:; not %s over_bound", next.ID(), owner.ID()))
}

func TestDecisionReportsTheMatchOfEachCandidate(t *testing.T) {
	f, d := newFleet(t, 2, 9, 9), &told{most: 9}
	r := New(f.replicas, affinity(DefaultPrefixOptions), roomy, d.hooks())
	choosePrompt(t, r, long(1, 8))
	sel := choosePrompt(t, r, long(1, 10))
	if sel.Matched() != 8 || sel.Rank() != 1 {
		t.Errorf("it matched %d with rank %d", sel.Matched(), sel.Rank())
	}
	choosePrompt(t, r, long(1, 12)) // the one that knows it is full
	d.want(t,
		"a 1 0 of 8: a/1/0/0 chosen b/2/0/0 c/3/0/0",
		"a 1 8 of 10: a/1/1/8 chosen b/2/0/0 c/3/0/0",
		"b 2 0 of 12: a/1/2/10 full b/2/0/0 chosen c/3/0/0; not a full")
	choosePrompt(t, r, long(1, 12))
	d.want(t, "b 1 12 of 12: b/1/1/12 chosen a/2/2/10 full c/3/0/0")
}

// Whoever looks on must not cost a slot.
func TestDecisionHookThatPanicsCostsNoSlot(t *testing.T) {
	f := newFleet(t, 1)
	r := New(f.replicas, newByText, roomy, Hooks{Decided: func(Decision) { panic("looked too closely") }})
	func() {
		defer func() { recover() }()
		r.Choose(t.Context(), &Payload{})
	}()
	f.wantIdle(t)
}

// stats returns the figures that a router's policy reports.
func stats(r *Router) map[string]float64 {
	all := make(map[string]float64)
	r.Policy().(Introspector).Stats(func(name string, value float64) { all[name] = value })
	return all
}

func TestConsistentHashCountsRebuildsOfTheRing(t *testing.T) {
	f := newFleet(t, 1, 1, 1)
	r := newHashRouter(f, DefaultHashOptions)
	update := func(members []*llmserver.Replica, want float64) {
		t.Helper()
		r.Update(members, ConsistentHash(DefaultHashOptions, func() uint64 { return 0 }), roomy)
		if got := stats(r)[StatRingRebuilds]; got != want {
			t.Errorf("it was rebuilt %v times; want %v", got, want)
		}
	}
	update(f.replicas, 0)
	f.replicas[0].Drain()
	r.Refresh()
	update(f.replicas, 0)
	update(f.replicas[1:], 1)
	update(f.replicas[1:], 1)
	update(f.replicas, 2)
}

func TestPrefixAffinityReportsIndexSizeAndEvictions(t *testing.T) {
	f, o := newFleet(t, 999), DefaultPrefixOptions
	o.KVBlocks = 50
	r := New(f.replicas, affinity(o), roomy, Hooks{})
	index := func() (bytes, evictions float64) { return stats(r)[StatIndexBytes], stats(r)[StatIndexEvictions] }
	if bytes, evictions := index(); bytes != 0 || evictions != 0 {
		t.Errorf("before the first prompt it takes %v bytes and evicted %v", bytes, evictions)
	}
	serve(t, choosePrompt(t, r, long(1, 30)))
	if bytes, evictions := index(); bytes <= 0 || bytes > float64(o.IndexBytes) || evictions != 0 {
		t.Errorf("after one prompt it takes %v bytes and evicted %v", bytes, evictions)
	}
	serve(t, choosePrompt(t, r, long(2, 30)))
	if _, evictions := index(); evictions != 10 {
		t.Errorf("for ten blocks too many it evicted %v", evictions)
	}
}
