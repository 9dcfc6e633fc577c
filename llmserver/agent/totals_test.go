package agent

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
)

// What operators read of refusals is what happened, waits that ended without a slot among them.
func TestTableTotalsCountEveryRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable(1)
		spent := uuid.New()
		table.Release(spent)
		holder := mustReserve(t, table)
		tryReserve(t, table, uuid.New())                          // full
		<-queueReserve(t, table, uuid.New(), DefaultLease/2).done // waits in vain, also full
		tryReserve(t, table, spent)                               // its token is spent
		table.Consume(spent)                                      // likewise
		waiting := queueReserve(t, table, uuid.New(), time.Hour)  // is refused by the drain
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

// Of two reports the one with the lower seq is ignored.
func TestTableDrainIncrementsSeq(t *testing.T) {
	table := NewTable(1)
	before := table.Report().Seq
	if table.Drain(); table.Report().Seq <= before {
		t.Errorf("its seq is %d; that before was %d", table.Report().Seq, before)
	}
}
