package llmserver

import "testing"

func BenchmarkGate(b *testing.B) {
	b.ReportAllocs()
	var g gate
	g.setLimit(1)
	for b.Loop() {
		if g.reserveUnit(0) != nil {
			b.Fatal("it is full")
		}
		g.startUnit()
		g.releaseUnit(oneRunning)
	}
}

func BenchmarkGateUnderContention(b *testing.B) {
	b.ReportAllocs()
	var g gate
	g.setLimit(MaxLimit)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if g.reserveUnit(0) == nil {
				g.startUnit()
				g.releaseUnit(oneRunning)
			}
		}
	})
}

func BenchmarkSlot(b *testing.B) {
	b.ReportAllocs()
	r := NewReplica(Endpoint{ID: "r", Limit: 1}, &HTTP{})
	for b.Loop() {
		s, err := r.TryReserve("holder", 0)
		if err != nil {
			b.Fatal(err)
		}
		if s.Confirm(b.Context(), 0) != nil || s.Start() != nil {
			b.Fatal("it was refused")
		}
		s.Release()
	}
}

func BenchmarkSlotHandOver(b *testing.B) {
	b.ReportAllocs()
	r := NewReplica(Endpoint{ID: "r", Limit: 1}, &HTTP{})
	s, err := r.TryReserve("holder", 0)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if s.Start() != nil {
			b.Fatal("it was refused")
		}
		if s = s.HandOver("next"); s == nil {
			b.Fatal("it was not handed over")
		}
	}
	s.Release()
	r.Wait()
}
