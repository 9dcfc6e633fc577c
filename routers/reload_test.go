package routers

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/llmserver"
)

// reloads is a set of replicas that two models share out anew at every reload, with requests that
// wait and run meanwhile.
type reloads struct {
	*fleet
	rand    *rand.Rand
	routers [2]*Router
	all     []*request
}

// mustBuild returns the builder of a policy of the conformance suite.
func mustBuild(t testing.TB, i int) Builder {
	t.Helper()
	build, err := Lookup(conforming[i].class, conforming[i].kwargs)
	if err != nil {
		t.Fatal(err)
	}
	return build
}

// reload gives each model some of the replicas, of which some are new, renamed or of another capacity, a
// policy and the way in which it hears of them, as ingress does it. A model may have none.
func (l *reloads) reload(t *testing.T) {
	shares := [2][]llmserver.Endpoint{}
	for i := range 5 {
		e := llmserver.Endpoint{Model: "m", URL: "http://" + string(rune('a'+i)), Limit: 1 + l.rand.IntN(2)}
		e.ID = string(rune('a' + l.rand.IntN(3)*5 + i))
		if l.rand.IntN(4) == 0 {
			e.Instance = "new"
		}
		if m := l.rand.IntN(3); m < 2 {
			shares[m] = append(shares[m], e)
		}
	}
	l.endpoints = slices.Concat(shares[0], shares[1])
	replicas, retire, err := l.pool.Set(l.endpoints)
	if err != nil {
		t.Fatal(err)
	}
	l.replicas = replicas
	for m, share := range shares {
		mine := replicas[:len(share)]
		replicas = replicas[len(share):]
		limits := Limits{MaxQueued: -1, QueueTimeout: time.Hour}
		build := mustBuild(t, l.rand.IntN(len(conforming)))
		if r := l.routers[m]; r != nil && l.rand.IntN(6) == 0 {
			r.Close()
			l.routers[m] = nil
		}
		for _, replica := range mine {
			replica.OnChange(func() { l.routers[m].Refresh() })
		}
		if l.routers[m] == nil {
			l.routers[m] = New(mine, build, limits, Hooks{})
		} else {
			l.routers[m].Update(mine, build, limits)
		}
	}
	retire()
}

// request begins one of a few conversations at a model.
func (l *reloads) request(t *testing.T) {
	session := l.rand.IntN(4)
	q := &request{done: make(chan struct{}), payload: Payload{SessionID: fmt.Sprint(session)}}
	for i := range 3 {
		q.payload.Blocks = append(q.payload.Blocks, uint64(session*10+i+1))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	q.cancel = cancel
	r := l.routers[l.rand.IntN(2)]
	go func() {
		defer close(q.done)
		q.sel, q.err = r.Choose(ctx, &q.payload)
	}()
	l.all = append(l.all, q)
}

// step lets one request begin, be given up, be dispatched or end, or the configuration change.
func (l *reloads) step(t *testing.T) {
	switch l.rand.IntN(8) {
	case 0:
		l.reload(t)
	case 1, 2, 3:
		l.request(t)
	case 4:
		if len(l.all) > 0 {
			l.all[l.rand.IntN(len(l.all))].cancel(context.Canceled)
		}
	default:
		l.end(t)
	}
	synctest.Wait()
}

// end ends one of the requests that have a slot; some were dispatched.
func (l *reloads) end(t *testing.T) {
	for i, q := range l.all {
		if !q.returned() {
			continue
		}
		l.all = slices.Delete(l.all, i, i+1)
		if _, unavailable := errors.AsType[*UnavailableError](q.err); q.err != nil && !unavailable && q.err != ErrClosed && q.err != context.Canceled {
			t.Errorf("Choose = %v", q.err)
		}
		if q.sel != nil {
			serveGone(t, q.sel)
		}
		return
	}
}

// serveGone is serve for a replica that may have left the set.
func serveGone(t *testing.T, sel *Selection) {
	if _, err := sel.Dispatch(&http.Request{}); err != nil && !errors.Is(err, llmserver.ErrGone) {
		t.Errorf("Dispatch: %v", err)
	}
	sel.Release()
}

// wantNoneForgotten fails where a request waits though a replica that it could use has room.
func (l *reloads) wantNoneForgotten(t *testing.T) {
	t.Helper()
	for m, r := range l.routers {
		if r.QueueLength() == 0 {
			continue
		}
		g := r.current.Load()
		for w := r.queue.head; w != nil; w = w.next {
			now := &waiter{exclude: w.exclude} // so that w stays as outdated as it is
			now.setRanking(g, g.rank(w.payload))
			if i := now.bestWithRoom(g); i >= 0 {
				t.Fatalf("a request of model %d waits though %s has room", m, g.members[i].ID())
			}
		}
	}
}

// Whatever a reload changes, in every combination, while requests wait and run: nothing panics, nobody is
// forgotten, and every slot comes back.
func TestRouterUpdatesLoseNoRequest(t *testing.T) {
	for seed := range uint64(400) {
		synctest.Test(t, func(t *testing.T) {
			l := &reloads{fleet: newFleet(t), rand: rand.New(rand.NewPCG(seed, 0))}
			defer func() {
				if t.Failed() {
					t.Logf("seed %d", seed)
				}
			}()
			l.reload(t)
			for range 60 {
				l.step(t)
				l.wantNoneForgotten(t)
			}
			for _, r := range l.routers {
				r.Close()
			}
			synctest.Wait()
			for len(l.all) > 0 {
				l.end(t)
			}
			for _, leaving := range append(l.pool.Leaving(), l.replicas...) {
				if u := leaving.Usage(); u.Ongoing() != 0 {
					t.Errorf("replica %s: %d reserved, %d running", leaving.ID(), u.Reserved, u.Running)
				}
			}
		})
	}
}

// One policy learns and the next does not, and the fleet grows while a request waits.
func TestRouterUpdateFromEveryPolicyToEveryOther(t *testing.T) {
	for i, from := range conforming {
		for j, to := range conforming {
			t.Run(from.class+" to "+to.class, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFleet(t, 1, 1, 1)
					r := New(f.replicas[:1], mustBuild(t, i), roomy, Hooks{})
					holder := mustChoose(t, r, "")
					all := queueUp(t, r, "", "", "")
					r.Update(f.replicas, mustBuild(t, j), roomy)
					if got := served(all); len(got) != 2 {
						t.Errorf("%v were served by two replicas more; want two of three", got)
					}
					serve(t, holder)
					releaseAll(t, all)
					f.wantIdle(t)
				})
			})
		}
	}
}

// A replica moves to another model while a request of the old one runs on it and others of the old model wait.
func TestRouterNotifiesTheNewModelOfAReleasedSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)
		before, after := New(f.replicas, newByText, roomy, Hooks{}), New(nil, newByText, roomy, Hooks{})
		moved, stays := mustChoose(t, before, "a"), mustChoose(t, before, "b")
		old := queueUp(t, before, "b")
		f.replicas[0].OnChange(after.Refresh)
		after.Update(f.replicas[:1], newByText, roomy)
		before.Update(f.replicas[1:], newByText, roomy)
		waiting := queueUp(t, after, "a")
		serve(t, moved)
		if got := served(waiting); len(got) != 1 {
			t.Error("the new model's request was not served by the slot that the old model gave back")
		}
		serve(t, stays)
		releaseAll(t, append(old, waiting...))
		f.wantIdle(t)
	})
}

// A replica that is down gets nobody from the line, though it gives back a slot.
func TestRouterQueueGetsNoSlotOfAReplicaThatIsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, 1, 1)                          // never probed
		r := New(f.replicas, newByText, roomy, Hooks{}) // which is not told
		holder, other := mustChoose(t, r, "a"), mustChoose(t, r, "b")
		all := queueUp(t, r, "ab")
		holder.Fail(llmserver.ErrNoConnection)
		serve(t, holder)
		if got := served(all); got != nil {
			t.Error("its slot was handed over")
		}
		serve(t, other)
		releaseAll(t, all)
	})
}
