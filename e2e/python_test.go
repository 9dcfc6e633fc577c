package e2e

import "testing"

func TestOfficialPythonSDKIsServed(t *testing.T) {
	t.Parallel()
	python := inside(virtualenv(t, "python/requirements.txt"), "python")
	s := everyKind(t)
	c := run(t, "", python, "python/client.py", s.url+"/v1")
	if status := c.status(t); status != 0 {
		t.Fatalf("client.py ended with status %d", status)
	}
	over(t, s.engines["demo"], 1)
	over(t, s.engines["silent"], 1)
}
