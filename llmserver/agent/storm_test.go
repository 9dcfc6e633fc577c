package agent

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"berth/llmserver"
)

// The end of a lease and Consume race: exactly one wins, and without a race the earlier one.
func TestTableLeaseExpiryAndConsumeExcludeEachOther(t *testing.T) {
	const lease = time.Millisecond
	for _, late := range []time.Duration{-1, 0, 1} {
		for range 100 {
			synctest.Test(t, func(t *testing.T) {
				table, token := NewTable(1), uuid.New()
				if _, err := table.Reserve(t.Context(), token, lease, 0); err != nil {
					t.Fatal(err)
				}
				time.Sleep(lease + late) // at 0 this goroutine races with the end of the lease
				r, err := table.Consume(token)
				synctest.Wait()
				reading := table.Read()
				wantBalance(t, reading)
				switch {
				case err == nil && (late > 0 || reading.Running != 1 || reading.Expired != 0):
					t.Fatalf("consumed %v after the lease, with %+v", late, reading)
				case err != nil && (late < 0 || reading.Ongoing != 0 || reading.Expired != 1):
					t.Fatalf("refused %v after the lease, with %+v", late, reading)
				case err == nil:
					r.Finish()
				}
			})
		}
	}
}

// Many callers act at random. The capacity is never exceeded, and in the end every slot is free.
func TestTableStormNeverExceedsCapacityAndLeavesNothing(t *testing.T) {
	const limit = 7
	table := NewTable(limit)
	tokens := make(chan llmserver.Token, 64) // tokens of other callers
	var callers sync.WaitGroup
	for range 32 {
		callers.Go(func() {
			for range 300 {
				churnTable(t, table, tokens)
				if r := table.Read(); r.Ongoing > limit || r.Highest > limit {
					t.Errorf("%d of %d slots are taken, at most %d were", r.Ongoing, limit, r.Highest)
				}
			}
		})
	}
	callers.Wait()
	table.Drain()
	<-table.Drained()
	wantCounts(t, table, 0, 0, 0)
	if h := table.Read().Highest; h != limit {
		t.Errorf("at most %d slots were taken: no storm", h)
	}
}

// churnTable performs random calls of one caller.
func churnTable(t *testing.T, table *Table, tokens chan llmserver.Token) {
	token := uuid.New()
	ctx, stop := context.WithTimeout(t.Context(), time.Duration(rand.IntN(2000))*time.Microsecond)
	defer stop()
	select {
	case other := <-tokens: // late, repeated or early
		switch rand.IntN(3) {
		case 0:
			table.Release(other)
		case 1:
			token = other
		default:
			if r, err := table.Consume(other); err == nil {
				r.Finish()
			}
		}
	default:
	}
	if rand.IntN(8) == 0 {
		if r, err := table.Acquire(); err == nil {
			defer r.Finish()
		}
	}
	if rand.IntN(4) == 0 {
		select {
		case tokens <- token:
		default:
		}
	}
	wait := time.Duration(rand.IntN(4)) * 200 * time.Microsecond
	if _, err := table.Reserve(ctx, token, time.Duration(1+rand.IntN(1000))*time.Microsecond, wait); err != nil {
		return
	}
	switch rand.IntN(4) {
	case 0: // abandoned to its lease
	case 1:
		table.Release(token)
	default:
		if r, err := table.Consume(token); err == nil {
			r.Finish()
			r.Finish()
		}
	}
}
