package routers

import "testing"

// ticket lines up for a chain.
func tryTicket(t *testing.T, r *Router, c []uint64) *Ticket {
	t.Helper()
	sel, ticket, err := r.Try(t.Context(), &Payload{Blocks: c})
	if err != nil || sel != nil {
		t.Fatalf("it does not wait: %v, %v", sel, err)
	}
	return ticket
}

// won is what a ticket has won by now.
func pollSelection(t *testing.T, k *Ticket) *Selection {
	t.Helper()
	sel, err := k.Poll(t.Context())
	if err != nil || sel == nil {
		t.Fatalf("it has not got a slot: %v", err)
	}
	return sel
}

func TestRouterTicketGetsTheSlotOfItsPrefix(t *testing.T) {
	f := newFleet(t, 1, 1)
	r := newAffinityRouter(f)
	onA, onB := choosePrompt(t, r, long(1, 20)), choosePrompt(t, r, long(2, 20))
	ofA, ofB := tryTicket(t, r, long(1, 25)), tryTicket(t, r, long(2, 25))
	serve(t, onB)
	if sel, err := ofA.Poll(t.Context()); sel != nil || err != nil {
		t.Errorf("the older one got the slot where its beginning is not: %v", err)
	}
	if sel := pollSelection(t, ofB); sel.Replica() != onB.Replica() {
		t.Errorf("it got a slot on %s", sel.Replica().ID())
	}
	serve(t, onA)
	pollSelection(t, ofA)
}

func TestRouterTicketIsRankedByWhatWasLearnedMeanwhile(t *testing.T) {
	f := newFleet(t, 1, 1)
	r := newAffinityRouter(f)
	onA, onB := choosePrompt(t, r, long(1, 20)), choosePrompt(t, r, long(2, 20))
	firstTurn := tryTicket(t, r, long(3, 20))
	var crowd []*Ticket
	for i := range scanWindow {
		crowd = append(crowd, tryTicket(t, r, long(10+i, 20)))
	}
	secondTurn := tryTicket(t, r, long(3, 25)) // of a conversation that is nowhere yet
	last := tryTicket(t, r, long(4, 20))
	serve(t, onA)
	conversation := pollSelection(t, firstTurn)
	for _, k := range crowd {
		serve(t, onB)
		onB = pollSelection(t, k)
	}
	serve(t, onB)
	pollSelection(t, last)
	serve(t, conversation)
	pollSelection(t, secondTurn)
}
