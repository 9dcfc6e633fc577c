package agent

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// tryReserve reserves without a wait, with the default lease.
func tryReserve(t *testing.T, table *Table, token llmserver.Token) error {
	_, err := table.Reserve(t.Context(), token, DefaultLease, 0)
	return err
}

// mustReserve reserves a slot that must be free.
func mustReserve(t *testing.T, table *Table) llmserver.Token {
	t.Helper()
	token := uuid.New()
	if err := tryReserve(t, table, token); err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	return token
}

// mustConsume consumes a token that must be reserved.
func mustConsume(t *testing.T, table *Table, token llmserver.Token) *Run {
	t.Helper()
	r, err := table.Consume(token)
	if err != nil {
		t.Fatalf("Consume: %v", err)
	}
	return r
}

// pendingReserve is a call of Reserve in a goroutine of its own.
type pendingReserve struct {
	token llmserver.Token
	stop  context.CancelFunc
	done  chan struct{}
	err   error
	took  time.Duration
}

// queueReserve calls Reserve with a wait and returns when the call waits or has returned.
func queueReserve(t *testing.T, table *Table, token llmserver.Token, wait time.Duration) *pendingReserve {
	return queueReserveFor(t, table, token, DefaultLease, wait)
}

// holderOf returns one of two holder names, or none, depending on the token.
func holderOf(token llmserver.Token) string { return []string{"", "x", "y"}[int(token[15])%3] }

func queueReserveFor(t *testing.T, table *Table, token llmserver.Token, lease, wait time.Duration) *pendingReserve {
	a := &pendingReserve{token: token, done: make(chan struct{})}
	ctx, stop := context.WithCancel(t.Context())
	a.stop = stop
	began := time.Now()
	go func() {
		defer close(a.done)
		_, a.err = table.ReserveFor(ctx, holderOf(token), token, lease, wait)
		a.took = time.Since(began)
	}()
	synctest.Wait()
	return a
}

func (a *pendingReserve) isWaiting() bool {
	synctest.Wait()
	select {
	case <-a.done:
		return false
	default:
		return true
	}
}

// wantCounts checks the slots held and the calls waiting.
func wantCounts(t *testing.T, table *Table, reserved, running, waiting int) {
	t.Helper()
	r := table.Read()
	if r.Reserved != reserved || r.Running != running || r.Waiting != waiting || r.Ongoing != reserved+running {
		t.Fatalf("reserved %d, running %d, waiting %d, ongoing %d; want %d, %d, %d", r.Reserved, r.Running, r.Waiting, r.Ongoing, reserved, running, waiting)
	}
	wantBalance(t, r)
}

// wantBalance checks that every reservation and every request is accounted for.
func wantBalance(t interface{ Fatalf(string, ...any) }, r Snapshot) {
	if ended := r.Consumed + r.Released + r.Expired; r.Totals.Reserved != ended+uint64(r.Reserved) {
		t.Fatalf("%d were reserved, %d ended and %d are left", r.Totals.Reserved, ended, r.Reserved)
	}
	if began := r.Consumed + r.Unreserved; began != r.Finished+uint64(r.Running) {
		t.Fatalf("%d requests began, %d finished and %d run", began, r.Finished, r.Running)
	}
}

func TestTableLeaseEndsReservationsNotRequests(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{
		time.Second: time.Second, MaxLease: MaxLease, MaxLease + 1: MaxLease, 1 << 62: MaxLease,
	} {
		synctest.Test(t, func(t *testing.T) {
			table := NewTable(2)
			defer mustConsume(t, table, mustReserve(t, table)).Finish()
			token := uuid.New()
			if _, err := table.Reserve(t.Context(), token, lease, 0); err != nil {
				t.Fatal(err)
			}
			time.Sleep(want - 1)
			synctest.Wait()
			wantCounts(t, table, 1, 1, 0)
			time.Sleep(1)
			synctest.Wait()
			wantCounts(t, table, 0, 1, 0)
			if n := table.Read().Expired; n != 1 {
				t.Errorf("%d leases expired", n)
			}
			if _, err := table.Consume(token); err != llmserver.ErrToken {
				t.Errorf("Consume after the lease = %v", err)
			}
			time.Sleep(24 * time.Hour)
			wantCounts(t, table, 0, 1, 0)
		})
	}
}

func TestTableRepeatedTokenHoldsOneSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(2)
		token := mustReserve(t, table)
		time.Sleep(DefaultLease / 2)
		if err := tryReserve(t, table, token); err != nil {
			t.Errorf("the second time: %v", err)
		}
		wantCounts(t, table, 1, 0, 0)
		time.Sleep(DefaultLease / 2)
		synctest.Wait()
		wantCounts(t, table, 0, 0, 0)
	})
}

func TestTableReservedTokenStaysReservedWhileDraining(t *testing.T) {
	table := NewTable(1)
	token := mustReserve(t, table)
	table.Drain()
	if err := tryReserve(t, table, token); err != nil {
		t.Errorf("Reserve = %v", err)
	}
	mustConsume(t, table, token).Finish()
}

// A token is spent however it ended, and stays spent for longer than any call about it can be
// delayed.
func TestTableSpentTokenNeverReservesAgain(t *testing.T) {
	ways := map[string]func(t *testing.T, table *Table, token llmserver.Token){
		"consumed": func(t *testing.T, table *Table, token llmserver.Token) {
			tryReserve(t, table, token)
			mustConsume(t, table, token)
		},
		"finished": func(t *testing.T, table *Table, token llmserver.Token) {
			tryReserve(t, table, token)
			mustConsume(t, table, token).Finish()
		},
		"released": func(t *testing.T, table *Table, token llmserver.Token) {
			tryReserve(t, table, token)
			table.Release(token)
		},
		"cancelled before it came": func(_ *testing.T, table *Table, token llmserver.Token) { table.Release(token) },
		"expired": func(t *testing.T, table *Table, token llmserver.Token) {
			table.Reserve(t.Context(), token, time.Nanosecond, 0)
			time.Sleep(1)
			synctest.Wait()
		},
		"waited in vain": func(t *testing.T, table *Table, token llmserver.Token) {
			var holders []*Run
			for range 3 {
				r, _ := table.Acquire()
				holders = append(holders, r)
			}
			table.Reserve(t.Context(), token, DefaultLease, time.Nanosecond)
			for _, r := range holders {
				r.Finish()
			}
		},
	}
	for name, spend := range ways {
		for phase := range 8 {
			t.Run(fmt.Sprint(name, "/", phase), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					table := NewTable(3)
					table.Release(uuid.New()) // starts the first generation of tombstones
					time.Sleep(time.Duration(phase) * MaxLease / 7)
					token := uuid.New()
					spend(t, table, token)
					before, began := table.Read(), time.Now()
					for at := time.Duration(0); at < MaxLease; at += MaxLease / 8 {
						time.Sleep(at - time.Since(began))
						table.Release(uuid.New()) // may start another generation
						if err := tryReserve(t, table, token); err != llmserver.ErrToken {
							t.Errorf("Reserve after %v = %v", at, err)
						}
						if _, err := table.Consume(token); err != llmserver.ErrToken {
							t.Errorf("Consume after %v = %v", at, err)
						}
					}
					if now := table.Read(); now.Ongoing != before.Ongoing || now.Seq != before.Seq {
						t.Errorf("the refusals changed %+v to %+v", before.Report, now.Report)
					}
				})
			})
		}
	}
}

func TestTableDrainedWhenNothingIsOngoing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		drained := func(table *Table) bool {
			select {
			case <-table.Drained():
				return true
			default:
				return false
			}
		}
		table := NewTable(3)
		running, reserved, forgotten := mustConsume(t, table, mustReserve(t, table)), mustReserve(t, table), mustReserve(t, table)
		table.Drain()
		table.Drain()
		if err := tryReserve(t, table, uuid.New()); err != llmserver.ErrDraining {
			t.Errorf("Reserve = %v", err)
		}
		if _, err := table.Acquire(); err != llmserver.ErrDraining {
			t.Errorf("Acquire = %v", err)
		}
		running.Finish()
		mustConsume(t, table, reserved).Finish()
		if drained(table) {
			t.Error("it was drained with a reservation left")
		}
		time.Sleep(DefaultLease)
		synctest.Wait()
		if !drained(table) {
			t.Error("the last lease is over and it is not drained")
		}
		if _, err := table.Consume(forgotten); err != llmserver.ErrToken {
			t.Errorf("Consume = %v", err)
		}
		idle := NewTable(1)
		if drained(idle) {
			t.Error("an idle table is drained before it drains")
		}
		if idle.Drain(); !drained(idle) {
			t.Error("an idle table is not drained at once")
		}
	})
}
