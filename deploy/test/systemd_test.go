package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

const unitFile = "../systemd/berth.service"

// setting returns the value of a setting of the unit.
func setting(t *testing.T, name string) string {
	t.Helper()
	found := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(readFile(t, unitFile), -1)
	if len(found) != 1 {
		t.Fatalf("the unit has %d settings %s, want one", len(found), name)
	}
	return found[0][1]
}

func TestSystemdUnitStartsBerthWithFlagsThatExist(t *testing.T) {
	words := strings.Fields(setting(t, "ExecStart"))
	if filepath.Base(words[0]) != "berth" || words[1] != "serve" {
		t.Fatalf("ExecStart=%v", words)
	}
	checkFlags(t, buildBerth(t), unitFile, words[1:])
}

// systemd kills berth only after the longest drain of a configuration with the default times.
func TestSystemdUnitWaitsForTheDrain(t *testing.T) {
	out, err := exec.Command(buildBerth(t), "check", "--print", "--config", "../../config/example.yaml").Output()
	if err != nil {
		t.Fatal(err)
	}
	var c struct {
		HTTP struct {
			Delay   float64 `json:"drain_delay_s"`
			Timeout float64 `json:"drain_timeout_s"`
		} `json:"http"`
	}
	if err := yaml.Unmarshal(out, &c); err != nil {
		t.Fatal(err)
	}
	stop, err := time.ParseDuration(strings.TrimSuffix(setting(t, "TimeoutStopSec"), "in"))
	if err != nil {
		t.Fatal(err)
	}
	drain := time.Duration((c.HTTP.Delay + c.HTTP.Timeout) * float64(time.Second))
	if drain == 0 || stop < drain+20*time.Second {
		t.Errorf("systemd kills berth after %v, the drain takes %v", stop, drain)
	}
	if mode := setting(t, "KillMode"); mode != "mixed" {
		t.Errorf("KillMode=%s", mode)
	}
	if reload := setting(t, "ExecReload"); !strings.Contains(reload, "-HUP $MAINPID") {
		t.Errorf("ExecReload=%s", reload)
	}
}

// systemd accepts the unit and finds no more exposure than a service with network access has.
func TestSystemdUnitIsValidAndHardened(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		skipOrFail(t, "systemd-analyze is not installed, so the unit is not verified: apt-get install systemd")
	}
	file := filepath.Join(t.TempDir(), "berth.service")
	unit := strings.ReplaceAll(readFile(t, unitFile), "/usr/local/bin/berth", buildBerth(t))
	if err := os.WriteFile(file, []byte(unit), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(tool, "verify", file).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err := exec.Command(tool, "security", "--offline=yes", "--threshold=15", file).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}
