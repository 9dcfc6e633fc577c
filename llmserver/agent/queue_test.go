package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// Neither a reservation without wait nor a request without reservation overtakes the queue.
func TestTableQueueIsNotOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(1)
		holder := mustConsume(t, table, mustReserve(t, table))
		var queue []*pendingReserve
		for range 5 {
			queue = append(queue, queueReserve(t, table, uuid.New(), time.Hour))
		}
		for i, a := range queue {
			wantCounts(t, table, 0, 1, len(queue)-i)
			holder.Finish()
			if _, err := table.Acquire(); err != llmserver.ErrFull {
				t.Fatalf("Acquire = %v", err)
			}
			if err := tryReserve(t, table, uuid.New()); err != llmserver.ErrFull {
				t.Fatalf("Reserve = %v", err)
			}
			<-a.done
			if a.err != nil {
				t.Fatalf("the one at %d in the queue: %v", i, a.err)
			}
			for _, later := range queue[i+1:] {
				if !later.isWaiting() {
					t.Fatalf("a later reservation was served first")
				}
			}
			holder = mustConsume(t, table, a.token)
		}
		holder.Finish()
		wantCounts(t, table, 0, 0, 0)
	})
}

// However a slot is released, it is granted to the queue in the same step.
func TestTableGrantedSlotIsNeverFree(t *testing.T) {
	ends := map[string]func(t *testing.T, table *Table, token llmserver.Token){
		"finish":  func(t *testing.T, table *Table, token llmserver.Token) { mustConsume(t, table, token).Finish() },
		"release": func(_ *testing.T, table *Table, token llmserver.Token) { table.Release(token) },
		"lease":   func(*testing.T, *Table, llmserver.Token) { time.Sleep(DefaultLease) },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := NewTable(1)
				holder := mustReserve(t, table)
				seq := table.Report().Seq
				a := queueReserve(t, table, uuid.New(), time.Hour)
				end(t, table, holder)
				synctest.Wait()
				wantCounts(t, table, 1, 0, 0)
				<-a.done
				if a.err != nil {
					t.Fatal(a.err)
				}
				changes := uint64(1) // one step, plus the edge to running if there was one
				if name == "finish" {
					changes++
				}
				if got := table.Report().Seq - seq; got != changes {
					t.Errorf("%d changes; want %d", got, changes)
				}
				table.Release(a.token)
			})
		})
	}
}

func TestTableEndedWaitHoldsNothing(t *testing.T) {
	tests := map[string]struct {
		end  func(table *Table, a *pendingReserve)
		took time.Duration
		want error
	}{
		"in vain":   {func(*Table, *pendingReserve) {}, time.Minute, llmserver.ErrFull},
		"abandoned": {func(_ *Table, a *pendingReserve) { a.stop() }, 0, context.Canceled},
		"cancelled": {func(table *Table, a *pendingReserve) { table.Release(a.token) }, 0, llmserver.ErrToken},
		"draining":  {func(table *Table, _ *pendingReserve) { table.Drain() }, 0, llmserver.ErrDraining},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := NewTable(1)
				holder := mustConsume(t, table, mustReserve(t, table))
				a := queueReserve(t, table, uuid.New(), time.Minute)
				test.end(table, a)
				<-a.done
				if a.err != test.want || a.took != test.took {
					t.Errorf("%v after %v; want %v after %v", a.err, a.took, test.want, test.took)
				}
				wantCounts(t, table, 0, 1, 0)
				holder.Finish()
				wantCounts(t, table, 0, 0, 0)
				if _, err := table.Consume(a.token); err != llmserver.ErrToken {
					t.Errorf("Consume = %v", err)
				}
			})
		})
	}
}

// A slot that is granted just when its caller leaves is not lost.
func TestTableReclaimsSlotOfCallerThatLeft(t *testing.T) {
	ways := map[string]struct {
		end  func(table *Table, a *pendingReserve)
		want error
	}{
		"gone":      {func(_ *Table, a *pendingReserve) { a.stop() }, context.Canceled},
		"cancelled": {func(table *Table, a *pendingReserve) { table.releaseToken(a.token) }, llmserver.ErrToken},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				table := NewTable(1)
				holder := mustReserve(t, table)
				a := queueReserve(t, table, uuid.New(), time.Minute)
				table.mu.Lock() // both events before the waiting call can lock
				table.releaseToken(holder)
				way.end(table, a)
				table.mu.Unlock()
				<-a.done
				if a.err != way.want {
					t.Errorf("Reserve = %v; want %v", a.err, way.want)
				}
				wantCounts(t, table, 0, 0, 0)
				if n := table.Read().Totals.Reserved; n != 2 {
					t.Errorf("%d slots were granted; want 2", n)
				}
			})
		})
	}
}

func TestTableRepeatedTokenSharesItsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(1)
		holder := mustConsume(t, table, mustReserve(t, table))
		token := uuid.New()
		first, second := queueReserve(t, table, token, time.Minute), queueReserve(t, table, token, time.Hour)
		wantCounts(t, table, 0, 1, 1)
		holder.Finish()
		<-first.done
		<-second.done
		if first.err != nil || second.err != nil {
			t.Errorf("%v, %v", first.err, second.err)
		}
		wantCounts(t, table, 1, 0, 0)
		holder = mustConsume(t, table, token)

		token = uuid.New()
		first, second = queueReserve(t, table, token, time.Minute), queueReserve(t, table, token, time.Hour)
		first.stop() // its connection broke, and the second call is its retry
		<-second.done
		if second.err != llmserver.ErrFull {
			t.Errorf("the call that shared the wait of one that gave up got %v", second.err)
		}
		holder.Finish()
		wantCounts(t, table, 0, 0, 0)
	})
}

func TestTableQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(1)
		defer table.Release(mustReserve(t, table))
		queue := make([]*pendingReserve, maxQueued)
		for i := range queue {
			queue[i] = queueReserve(t, table, uuid.New(), time.Second)
		}
		if a := queueReserve(t, table, uuid.New(), time.Second); a.isWaiting() || a.err != llmserver.ErrFull {
			t.Errorf("the reservation beyond the bound got %v", a.err)
		}
		for _, a := range queue {
			<-a.done
		}
	})
}
