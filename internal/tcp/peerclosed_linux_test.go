package tcp

import "testing"

func TestPeerClosed(t *testing.T) {
	for name, closeConn := range waysToClose {
		near, far := newTCPPair(t)
		if PeerClosed(near) {
			t.Fatalf("%s: reported before the close", name)
		}
		_, closed := watchForTest(t, near)
		closeConn(far)
		receiveClose(t, closed)
		if !PeerClosed(near) {
			t.Errorf("%s: not reported", name)
		}
	}
	near, _ := newTCPPair(t)
	near.Close()
	if !PeerClosed(near) {
		t.Error("closed by the owner: not reported")
	}
}
