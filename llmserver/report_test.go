package llmserver

import (
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

func TestReplicaAppliesReportOfEveryCall(t *testing.T) {
	failed := errors.New("failed")
	calls := map[string]func(t *testing.T, r *Replica, b *reportingBackend){
		"a reservation": func(t *testing.T, r *Replica, _ *reportingBackend) { mustReserve(t, r).Release() },
		"a refusal": func(t *testing.T, r *Replica, b *reportingBackend) {
			b.capacity = 0
			s, _ := r.TryReserve("holder", 0)
			s.Confirm(t.Context(), 0)
		},
		"a cancel": func(t *testing.T, r *Replica, b *reportingBackend) {
			now := b.currentReport()
			b.setReport(Report{})
			s := mustReserve(t, r)
			b.setReport(now)
			s.Release()
		},
		"a response": func(t *testing.T, r *Replica, b *reportingBackend) {
			now := b.currentReport()
			b.setReport(Report{})
			s := mustReserve(t, r)
			b.setReport(now)
			s.Start()
			if resp, err := r.Do(&http.Request{}, s); err == nil {
				resp.Body.Close()
			}
			s.Release()
		},
		"a refused request": func(t *testing.T, r *Replica, b *reportingBackend) {
			now := b.currentReport()
			b.setReport(Report{})
			s := mustReserve(t, r)
			b.setReport(now)
			b.faults = func(string) error { return failed }
			s.Start()
			r.Do(&http.Request{}, s)
			s.Release()
		},
		"a call without a slot": func(_ *testing.T, r *Replica, _ *reportingBackend) { r.Call(&http.Request{}) },
		"a call that was denied": func(_ *testing.T, r *Replica, b *reportingBackend) {
			b.faults = func(string) error { return failed }
			r.Call(&http.Request{})
		},
		"a probe": func(t *testing.T, r *Replica, _ *reportingBackend) { r.probeOnce(t.Context()) },
	}
	for name, call := range calls {
		t.Run(name, func(t *testing.T) {
			r, b, _ := newReportingReplica(8)
			b.setReport(Report{Ongoing: 5, Limit: 6, Instance: "i", Seq: 1})
			call(t, r, b)
			r.Wait()
			if got := r.remote.last; got != b.currentReport() {
				t.Errorf("the last report is %+v", got)
			}
		})
	}
}

func TestReplicaLoadIncludesOtherIngresses(t *testing.T) {
	r, _, _ := newReportingReplica(8)
	mine := mustReserve(t, r)
	r.applyReport(Report{Ongoing: 4, Limit: 8, Instance: "i", Seq: 5, Own: 1})
	if r.Load() != 4 {
		t.Errorf("load %d; want 4, of which one is ours", r.Load())
	}
	second := mustReserve(t, r)
	if r.Load() != 5 {
		t.Errorf("load %d; want ours since the report on top", r.Load())
	}
	mine.Release()
	second.Release()
	if r.Load() != 3 {
		t.Errorf("load %d; want that of the others", r.Load())
	}
	r.applyReport(Report{Ongoing: 0, Instance: "i", Seq: 6})
	if r.Load() != 0 {
		t.Errorf("load %d after the others have gone", r.Load())
	}
	r.applyReport(Report{Ongoing: 1, Instance: "i", Seq: 7, Own: 3}) // which cannot be, and must not attract requests
	if r.Load() != 0 {
		t.Errorf("load %d; want none", r.Load())
	}
}

func TestReplicaIgnoresOlderReports(t *testing.T) {
	r, _, n := newReportingReplica(8)
	r.applyReport(Report{Ongoing: 4, Limit: 8, Instance: "i", Seq: 5})
	r.applyReport(Report{Ongoing: 7, Limit: 3, Instance: "i", Seq: 4})
	if r.Load() != 4 || r.Usage().Limit != 8 {
		t.Errorf("load %d of %d", r.Load(), r.Usage().Limit)
	}
	mine := mustReserve(t, r)
	r.applyReport(Report{Ongoing: 4, Instance: "i", Seq: 5, Own: 1}) // with one of them ours by now
	if r.Load() != 4 {
		t.Errorf("load %d; want 4", r.Load())
	}
	mine.Release()
	r.applyReport(Report{})
	if r.Load() != 3 || n.restarted.Load() != 0 {
		t.Errorf("after an empty report: load %d, %d restarts", r.Load(), n.restarted.Load())
	}
}

// A report of a full replica expires: other ingresses release their slots at the agent, not here.
func TestReplicaFullReportExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _ := newReportingReplica(2)
		r.applyReport(Report{Ongoing: 1, Limit: 2, Instance: "i", Seq: 1})
		if !r.HasRoom() {
			t.Error("one of two is taken, and there is no room")
		}
		r.applyReport(Report{Ongoing: 2, Instance: "i", Seq: 2})
		time.Sleep(reportTTL - 1)
		if r.HasRoom() {
			t.Error("others have it all, and there is room")
		}
		time.Sleep(1)
		if !r.HasRoom() {
			t.Error("an old report keeps requests away")
		}
		first, second := mustReserve(t, r), mustReserve(t, r)
		if r.HasRoom() {
			t.Error("all slots are held here, and there is room")
		}
		first.Release()
		second.Release()
		r.Wait()
	})
}

// A refused reservation is not among the requests that the report counts.
func TestReplicaHasNoRoomAfterRefusal(t *testing.T) {
	r, b, _ := newReportingReplica(3)
	b.setReport(Report{Ongoing: 3, Limit: 3, Instance: "i", Seq: 1})
	b.capacity = 0
	s, err := r.TryReserve("holder", 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Confirm(t.Context(), 0); err != ErrFull {
		t.Fatalf("Confirm = %v", err)
	}
	if r.HasRoom() || r.Load() != 3 {
		t.Errorf("load %d of 3, room: %t", r.Load(), r.HasRoom())
	}
}

func TestReplicaReportedCapacityApplies(t *testing.T) {
	r, b, n := newReportingReplica(8)
	r.applyReport(Report{Ongoing: 1, Instance: "i", Seq: 1}) // from a header, without the capacity
	if r.Usage().Limit != 8 || n.differs.Load() != 0 {
		t.Errorf("limit %d before one was reported", r.Usage().Limit)
	}
	r.applyReport(Report{Ongoing: 1, Limit: 3, Instance: "i", Seq: 1})
	r.applyReport(Report{Ongoing: 1, Limit: 3, Instance: "i", Seq: 2})
	if r.Usage().Limit != 3 || n.differs.Load() != 1 || n.configured != 8 || n.reported != 3 {
		t.Errorf("limit %d; %d events that %d was configured and %d reported", r.Usage().Limit, n.differs.Load(), n.configured, n.reported)
	}
	if n.observed.Load() != 1 {
		t.Errorf("the observer was notified %d times", n.observed.Load())
	}
	r.applyReport(Report{Ongoing: 1, Instance: "i", Seq: 3}) // a header again
	r.applyReport(Report{Ongoing: 1, Limit: 3, Instance: "i", Seq: 3})
	if n.differs.Load() != 1 || n.observed.Load() != 1 {
		t.Errorf("the same capacity was reported as news %d times", n.differs.Load())
	}
	r.applyReport(Report{Ongoing: 1, Instance: "i", Seq: 4})
	e := r.Endpoint()
	e.Limit, e.ID = 5, "renamed"
	r.describe(e) // a reload
	if r.Usage().Limit != 3 || r.ID() != "renamed" || b.described[len(b.described)-1].Limit != 5 {
		t.Errorf("after a reload: limit %d of %s", r.Usage().Limit, r.ID())
	}

	same, _, n := newReportingReplica(8)
	same.applyReport(Report{Limit: 8, Instance: "i", Seq: 1})
	if n.differs.Load() != 0 {
		t.Error("the configured capacity differs from itself")
	}
}

// A report and a reload race: the reported capacity applies in either order.
func TestReplicaReloadKeepsReportedCapacity(t *testing.T) {
	for range 2000 {
		r, _, _ := newReportingReplica(8)
		e := r.Endpoint()
		e.Limit = 5
		var both sync.WaitGroup
		both.Go(func() { r.describe(e) })
		both.Go(func() { r.applyReport(Report{Limit: 3, Instance: "i", Seq: 1}) })
		both.Wait()
		if got := r.Usage().Limit; got != 3 {
			t.Fatalf("limit %d; want the reported one", got)
		}
	}
}

func TestReplicaReportsRestartOnce(t *testing.T) {
	r, _, n := newReportingReplica(8)
	r.applyReport(Report{Ongoing: 4, Limit: 3, Instance: "old", Seq: 900})
	mine := mustReserve(t, r)
	load := r.Load()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { r.applyReport(Report{Ongoing: 1, Limit: 7, Instance: "new", Seq: 901}) })
	}
	all.Wait()
	if n.restarted.Load() != 1 {
		t.Errorf("%d restarts reported", n.restarted.Load())
	}
	if r.Load() != load || r.Usage().Limit != 3 {
		t.Errorf("load %d of %d; want %d of 3", r.Load(), r.Usage().Limit, load)
	}
	wantUsage(t, r, 1, 0)
	mine.Release()
}

func TestPoolReplacesOnlyTheRestartedReplica(t *testing.T) {
	p, _ := newTestPool()
	defer p.Close()
	var restarted atomic.Int32
	p.Events.Restarted = func(Endpoint) { restarted.Add(1) }
	before := mustSet(t, p, endpoint("a"), endpoint("b"))
	old, other := before[0], before[1]
	s, otherSlot := mustReserve(t, old), mustReserve(t, other)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	for _, r := range before {
		r.applyReport(Report{Ongoing: 1, Limit: 2, Instance: "first of " + r.ID(), Seq: 9})
	}
	old.applyReport(Report{Ongoing: 1, Limit: 2, Instance: "second", Seq: 1})
	if restarted.Load() != 1 {
		t.Fatalf("%d have restarted", restarted.Load())
	}
	after := mustSet(t, p, endpoint("a"), endpoint("b"))
	if after[0] == old || after[1] != other {
		t.Fatalf("%p, %p became %p, %p; want the first replaced", old, other, after[0], after[1])
	}
	wantUsage(t, after[0], 0, 0)
	wantUsage(t, old, 0, 1)
	wantUsage(t, other, 1, 0)
	if got := p.Leaving(); len(got) != 1 || got[0] != old {
		t.Errorf("leaving: %v", got)
	}
	after[0].applyReport(Report{Limit: 2, Instance: "second", Seq: 2})
	if again := mustSet(t, p, endpoint("a"), endpoint("b")); again[0] != after[0] {
		t.Error("it was replaced a second time")
	}
	s.Release()
	otherSlot.Release()
	wantUsage(t, old, 0, 0)
	wantUsage(t, after[0], 0, 0)
}

// agentModel is an agent's count, and its reports in transit.
type agentModel struct {
	others, own int
	seq         uint64
	reports     []Report
}

// changed changes the count and sends a report.
func (m *agentModel) changed(others, own int) {
	m.others, m.own, m.seq = m.others+others, m.own+own, m.seq+1
	m.report()
}

func (m *agentModel) report() {
	m.reports = append(m.reports, Report{
		Ongoing: m.others + m.own, Limit: 100, Instance: "i", Seq: m.seq, Own: m.own,
	})
}

// Reports may be late and reordered, among themselves and with changes here. The count of the
// others is always that of the newest report; this ingress's own count is always current.
func TestReplicaLoadIsExactForAnyOrderOfReports(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, _, _ := newReportingReplica(100)
		var m agentModel
		var claimed, counted []*Slot // before and after the agent knows of them
		var over int                 // requests whose end the agent has counted and the ingress not
		newest, others := uint64(0), 0
		r.applyReport(Report{Limit: 100, Instance: "i"})
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if want := len(claimed) + len(counted) + others; r.Load() != want {
					t.Fatalf("load %d; want %d claimed, %d counted and %d of others", r.Load(), len(claimed), len(counted), others)
				}
			},
			"another comes": func(*rapid.T) { m.changed(+1, 0) },
			"another goes": func(*rapid.T) {
				if m.others > 0 {
					m.changed(-1, 0)
				}
			},
			"claim": func(t *rapid.T) {
				if s, err := r.TryReserve("holder", 0); err == nil {
					claimed = append(claimed, s)
				}
			},
			"reserve at the agent": func(*rapid.T) {
				if len(claimed) > 0 {
					counted, claimed = append(counted, claimed[0]), claimed[1:]
					m.changed(0, +1)
				}
			},
			"finish at the agent": func(*rapid.T) {
				if over < len(counted) {
					over++
					m.changed(0, -1)
				}
			},
			"release": func(*rapid.T) {
				if over > 0 {
					counted[0].state.Store(slotRunning) // it costs no cancel
					r.gate.startUnit()
					counted[0].Release()
					counted, over = counted[1:], over-1
				}
			},
			"probe": func(*rapid.T) { m.report() },
			"deliver": func(t *rapid.T) {
				if len(m.reports) == 0 {
					return
				}
				i := rapid.IntRange(0, len(m.reports)-1).Draw(t, "which")
				report := m.reports[i]
				m.reports = slices.Delete(m.reports, i, i+1)
				if report.Seq >= newest {
					newest, others = report.Seq, report.Ongoing-report.Own
				}
				r.applyReport(report)
			},
		})
	})
}
