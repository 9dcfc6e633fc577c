// Package e2e tests the berth binary from outside. The binary is built once and serves real OpenAI
// clients in front of simulated engines that run in the test process.
//
// Tests can therefore inspect the requests that arrived at an engine, inject faults at a chosen
// time, and compare the engine's responses with berth's, byte for byte. For tests of response
// formats, a scripted upstream serves each SDK twice, directly and through berth. After every test
// all slots and buffers must be released and the process must exit with status 0.
//
// The chaos test runs each engine as a separate process, since engines are killed and stopped too;
// docs/testing.md describes longer runs. The scenes of failing engines are those of e2e/scenes.
//
// The package also checks rules beyond the compiler's: the import table, the list of direct
// dependencies, the commands of the README, and the names in the documents.
//
// Tests with requirements beyond Go (python3, curl, two well-known ports) are skipped if these are
// missing. Tools are installed at pinned versions into the user's cache directory. With
// BERTH_E2E=all in the environment, a missing requirement is a failure.
package e2e
