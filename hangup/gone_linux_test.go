package hangup

import "testing"

func TestGoneTellsAClosedConnectionFromAnOpenOne(t *testing.T) {
	for name, end := range ends {
		near, far := pair(t)
		if Gone(near) {
			t.Fatalf("%s: gone before that", name)
		}
		_, told := watch(t, near)
		end(far)
		receive(t, told)
		if !Gone(near) {
			t.Errorf("%s: not gone", name)
		}
	}
	near, _ := pair(t)
	near.Close()
	if !Gone(near) {
		t.Error("a connection that was closed here is not gone")
	}
}
