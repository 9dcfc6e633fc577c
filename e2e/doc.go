// Package e2e proves berth from outside: it builds the binary once, puts it in front of simulated engines that run in the
// test process, and talks to it with real OpenAI clients.
//
// Because the engines are in reach, a test can ask them what really arrived, make them fail at a chosen moment, and
// compare their own answers with berth's, byte for byte. Where the form of an answer matters, a scripted upstream plays it, to
// each client of others with berth between them and without. Every test ends with the same question: are all slots back, is
// no byte still held, and does the process leave with status 0?
//
// The chaos test alone runs its engines as processes of their own, since they are killed and stopped
// like all others; docs/testing.md tells how to run it for longer.
//
// It also holds what no compiler does: which package may import which, what the module depends on, and that the
// commands of the README work, and that the documents name what exists.
//
// Tests that need something beyond Go (python3, curl, two well-known ports) are skipped where it is missing. What a test
// installs is pinned and goes to the user's cache directory. With
// BERTH_E2E=all in the environment such a skip is a failure.
package e2e
