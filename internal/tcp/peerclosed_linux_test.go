package tcp

import "testing"

func TestGoneTellsAClosedConnectionFromAnOpenOne(t *testing.T) {
	for name, end := range ends {
		near, far := tcpPair(t)
		if PeerClosed(near) {
			t.Fatalf("%s: gone before that", name)
		}
		_, told := watch(t, near)
		end(far)
		receive(t, told)
		if !PeerClosed(near) {
			t.Errorf("%s: not gone", name)
		}
	}
	near, _ := tcpPair(t)
	near.Close()
	if !PeerClosed(near) {
		t.Error("a connection that was closed here is not gone")
	}
}
