package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// binaryDir is the directory of the built binary.
var binaryDir string

func TestMain(m *testing.M) {
	var err error
	if binaryDir, err = os.MkdirTemp("", "berth-deploy-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(binaryDir)
	os.Exit(code)
}

// build builds berth once for all tests.
var build = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(binaryDir, "berth")
	c := exec.Command("go", "build", "-o", binary, "./cmd/berth")
	c.Dir = "../.."
	if out, err := c.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building berth: %w\n%s", err, out)
	}
	return binary, nil
})

func buildBerth(t *testing.T) string {
	t.Helper()
	binary, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// skipOrFail skips a test whose requirements are missing. With BERTH_E2E=all, the test fails
// instead.
func skipOrFail(t *testing.T, format string, args ...any) {
	t.Helper()
	if os.Getenv("BERTH_E2E") == "all" {
		t.Fatalf("BERTH_E2E=all: "+format, args...)
	}
	t.Skipf(format, args...)
}

func newReader(text string) *bufio.Reader { return bufio.NewReader(strings.NewReader(text)) }

// onlyComments reports whether a YAML document is empty but for comments.
func onlyComments(document string) bool {
	for line := range strings.Lines(document) {
		line = strings.TrimSpace(line)
		if line != "" && line != "---" && !strings.HasPrefix(line, "#") {
			return false
		}
	}
	return true
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// checkFlags checks that a subcommand of berth has the flags among the arguments that begin with
// the subcommand's name.
func checkFlags(t *testing.T, binary, where string, args []string) {
	t.Helper()
	if len(args) == 0 {
		t.Errorf("%s: berth is started without a subcommand", where)
		return
	}
	help, err := exec.Command(binary, args[0], "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("%s: berth %s --help: %v\n%s", where, args[0], err, help)
	}
	for _, a := range args[1:] {
		name, _, _ := strings.Cut(a, "=")
		if strings.HasPrefix(name, "--") && !strings.Contains(string(help), " "+name+" ") {
			t.Errorf("%s: berth %s has no flag %s", where, args[0], name)
		}
	}
}

// listening matches the first line that berth serve and berth llmserver print.
var listening = regexp.MustCompile(`(http://127\.0\.0\.1:\d+)`)

// startBerth starts berth with the given arguments and returns the address that it prints first.
// Cleanup stops it.
func startBerth(t *testing.T, args ...string) (url string) {
	t.Helper()
	c := exec.Command(buildBerth(t), args...)
	c.Stderr = io.Discard
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Process.Signal(syscall.SIGTERM)
		stuck := time.AfterFunc(time.Minute, func() { c.Process.Kill() })
		defer stuck.Stop()
		io.Copy(io.Discard, out)
		c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	found := listening.FindString(line)
	if found == "" {
		t.Fatalf("berth %v printed %q: %v", args, line, err)
	}
	return found
}

// get returns the body of a page.
func get(t *testing.T, url string) string {
	t.Helper()
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %d, %v\n%s", url, response.StatusCode, err, body)
	}
	return string(body)
}

// writeCertificate writes tls.crt and tls.key to dir.
func writeCertificate(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"berth"}}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{
		"tls.crt": {Type: "CERTIFICATE", Bytes: certificate},
		"tls.key": {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
