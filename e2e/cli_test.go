package e2e

import (
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// runToExit runs berth and returns its exit status and output.
func runToExit(t *testing.T, args ...string) (status int, out, log string) {
	t.Helper()
	c := startBerth(t, "", args...)
	status = c.waitExit(t)
	return status, c.stdout.String(), c.stderr.String()
}

func TestCheckAcceptsTheExampleAndPrintsTheEffectiveConfiguration(t *testing.T) {
	t.Parallel()
	const example = "../config/example.yaml"
	if status, out, log := runToExit(t, "check", "--config", example); status != 0 || out != example+" is valid\n" {
		t.Errorf("status %d, %q, %q", status, out, log)
	}
	status, out, log := runToExit(t, "check", "--print", "--config", example)
	if status != 0 {
		t.Fatalf("status %d: %s", status, log)
	}
	printed := filepath.Join(t.TempDir(), "printed.yaml")
	replaceFile(t, printed, out)
	if _, again, log := runToExit(t, "check", "--print", "--config", printed); again != out {
		t.Errorf("the printed configuration is printed differently:\n%s\n%s\n%s", out, again, log)
	}
}

func TestCheckReportsEveryProblemWithItsPosition(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bad.yaml")
	replaceFile(t, file, `llm_configs:
- model_loading_config: {model_id: demo}
  max_attempts: many
  deployment_config: {max_ongoing_requests: -3}
  replicas: [{url: "ftp://engine"}]
  nonsense: 1
`)
	status, out, log := runToExit(t, "check", "--config", file)
	if status != 1 || out != "" {
		t.Errorf("status %d, output %q; want 1 and none", status, out)
	}
	for _, place := range []string{":3:17: ", ":4:45: ", ":5:20: ", ":6:3: "} {
		if !strings.Contains(log, file+place) {
			t.Errorf("no problem at %s", place)
		}
	}
	if problems := strings.Count(log, file); problems != 4 {
		t.Errorf("%d problems reported, want 4:\n%s", problems, log)
	}
}

func TestServeRefusesABadConfiguration(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "bad.yaml")
	replaceFile(t, file, "llm_configs: []\n")
	if status, _, log := runToExit(t, "serve", "--config", file); status != 1 || !strings.Contains(log, file+":1:") {
		t.Errorf("status %d, %q", status, log)
	}
}

func TestCommandLineRefusesUnknownCommands(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"sail"}, {"check"}, {"serve", "--config", "/nowhere/berth.yaml"}, {"serve", "--addres", ":1"}} {
		if status, _, log := runToExit(t, args...); status == 0 || log == "" {
			t.Errorf("berth %s: status %d, %q", strings.Join(args, " "), status, log)
		}
	}
}

func TestVersionNamesBerthAndGo(t *testing.T) {
	t.Parallel()
	status, out, _ := runToExit(t, "version")
	if status != 0 || !regexp.MustCompile(`^berth \S+ \(commit \S+(, modified)?\) go1\.\S+\n$`).MatchString(out) {
		t.Errorf("status %d, %q", status, out)
	}
}

// requirePorts skips the test if one of the well-known ports is in use.
func requirePorts(t *testing.T) {
	t.Helper()
	for _, address := range []string{"127.0.0.1:8000", "127.0.0.1:8001"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			skipOrFail(t, "%s is in use: %v", address, err)
		}
		l.Close()
	}
}

// The test is not parallel, because it uses the well-known ports.
func TestServeWithoutAConfigurationAnswersThePrintedCurlLine(t *testing.T) {
	requirePorts(t)
	b := waitListening(t, startBerth(t, t.TempDir(), "serve"))
	t.Cleanup(func() { b.checkIdleAndStop(t) })
	output := b.stdout.String()
	line := output[strings.Index(output, "curl "):]
	if got := curl(t, line); !strings.Contains(got, `"delta":{"content":"`) || !strings.HasSuffix(got, "data: [DONE]\n\n") {
		t.Errorf("response %q", got)
	}
}

// curl runs a curl command with the shell and returns its output.
func curl(t *testing.T, line string) string {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		skipOrFail(t, "curl is required: %v", err)
	}
	c := startCommand(t, "", "sh", "-c", line)
	if status := c.waitExit(t); status != 0 {
		t.Fatalf("%s\nexited with status %d: %s", line, status, c.stderr.String())
	}
	return c.stdout.String()
}

func TestServeAddressOnTheCommandLineWins(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "berth.yaml")
	replaceFile(t, file, `
http: {address: "192.0.2.1:80"} # reserved for documentation by RFC 5737
admin: {address: "127.0.0.1:0"}
llm_configs: [{model_loading_config: {model_id: demo}, simulated: {}}]
`)
	b := waitListening(t, startBerth(t, "", "serve", "--config", file, "--address", "127.0.0.1:0"))
	if live := b.getPage(t, b.url+"/livez"); live.status != http.StatusOK {
		t.Errorf("/livez: %v", live)
	}
	b.signal(t, syscall.SIGINT)
	if status := b.waitExit(t); status != 0 {
		t.Errorf("an interrupted berth exited with status %d, want 0", status)
	}
}
