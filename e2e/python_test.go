package e2e

import "testing"

func TestOfficialPythonSDKIsServed(t *testing.T) {
	t.Parallel()
	python := venvProgram(virtualenv(t, "python/requirements.txt"), "python")
	s := serveSDKModels(t)
	c := startCommand(t, "", python, "python/client.py", s.url+"/v1")
	if status := c.waitExit(t); status != 0 {
		t.Fatalf("client.py exited with status %d", status)
	}
	waitAborted(t, s.engines["demo"], 1)
	waitAborted(t, s.engines["silent"], 1)
}
