package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// The counters include waits that ended without a slot.
func TestTableTotalsCountEveryRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(1)
		spent := uuid.New()
		table.Release(spent)
		holder := mustReserve(t, table)
		tryReserve(t, table, uuid.New())                          // full
		<-queueReserve(t, table, uuid.New(), DefaultLease/2).done // times out, also counted as full
		tryReserve(t, table, spent)                               // spent token
		table.Consume(spent)                                      // likewise
		waiting := queueReserve(t, table, uuid.New(), time.Hour)  // refused by the drain
		table.Drain()
		<-waiting.done
		tryReserve(t, table, uuid.New()) // draining
		table.Acquire()                  // draining
		table.Release(holder)
		got := table.Read().Totals
		want := Totals{Reserved: 1, RefusedFull: 2, RefusedToken: 2, RefusedDraining: 3, Released: 1, Highest: 1}
		if got != want {
			t.Errorf("%+v; want %+v", got, want)
		}
	})
}

// Of two reports the one with the lower seq is ignored, so draining must increment it.
func TestTableDrainIncrementsSeq(t *testing.T) {
	table := NewTable(1)
	before := table.Report().Seq
	if table.Drain(); table.Report().Seq <= before {
		t.Errorf("its seq is %d; that before was %d", table.Report().Seq, before)
	}
}
