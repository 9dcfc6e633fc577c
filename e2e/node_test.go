package e2e

import (
	"os"
	"path/filepath"
	"testing"
)

func TestNodeSDKsAreServed(t *testing.T) {
	t.Parallel()
	node, dir := nodeScripts(t)
	s := serveSDKModels(t)
	c := startCommand(t, "", node, filepath.Join(dir, "client.mjs"), s.url+"/v1")
	if status := c.waitExit(t); status != 0 {
		t.Fatalf("client.mjs exited with status %d", status)
	}
	waitAborted(t, s.engines["demo"], 1)
	waitAborted(t, s.engines["silent"], 1)
}

// nodeScripts returns the path of Node.js and a directory with the scripts and the modules that
// they import.
func nodeScripts(t *testing.T) (node, dir string) {
	t.Helper()
	node, modules := nodeModules(t)
	dir = t.TempDir()
	if err := os.CopyFS(dir, os.DirFS("node")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(modules, filepath.Join(dir, "node_modules")); err != nil {
		t.Fatal(err)
	}
	return node, dir
}
