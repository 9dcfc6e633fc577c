package routers

import "testing"

// ticket lines up for a chain.
func ticket(t *testing.T, r *Router, c []uint64) *Ticket {
	t.Helper()
	sel, ticket, err := r.Try(t.Context(), &Payload{Blocks: c})
	if err != nil || sel != nil {
		t.Fatalf("it does not wait: %v, %v", sel, err)
	}
	return ticket
}

// won is what a ticket has won by now.
func won(t *testing.T, k *Ticket) *Selection {
	t.Helper()
	sel, err := k.Poll(t.Context())
	if err != nil || sel == nil {
		t.Fatalf("it has not got a slot: %v", err)
	}
	return sel
}

func TestASlotGoesToWhoHasItsBeginningThere(t *testing.T) {
	f := newFleet(t, 1, 1)
	r := affine(f)
	onA, onB := prompt(t, r, long(1, 20)), prompt(t, r, long(2, 20))
	ofA, ofB := ticket(t, r, long(1, 25)), ticket(t, r, long(2, 25))
	serve(t, onB)
	if sel, err := ofA.Poll(t.Context()); sel != nil || err != nil {
		t.Errorf("the older one got the slot where its beginning is not: %v", err)
	}
	if sel := won(t, ofB); sel.Replica() != onB.Replica() {
		t.Errorf("it got a slot on %s", sel.Replica().ID())
	}
	serve(t, onA)
	won(t, ofA)
}

func TestWhatIsLearnedWhileARequestWaitsCounts(t *testing.T) {
	f := newFleet(t, 1, 1)
	r := affine(f)
	onA, onB := prompt(t, r, long(1, 20)), prompt(t, r, long(2, 20))
	firstTurn := ticket(t, r, long(3, 20))
	var crowd []*Ticket
	for i := range scanWindow {
		crowd = append(crowd, ticket(t, r, long(10+i, 20)))
	}
	secondTurn := ticket(t, r, long(3, 25)) // of a conversation that is nowhere yet
	last := ticket(t, r, long(4, 20))
	serve(t, onA)
	conversation := won(t, firstTurn)
	for _, k := range crowd {
		serve(t, onB)
		onB = won(t, k)
	}
	serve(t, onB)
	won(t, last)
	serve(t, conversation)
	won(t, secondTurn)
}
