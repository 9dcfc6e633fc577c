package main

import (
	"bytes"
	"runtime"
	"runtime/debug"
	"testing"
)

func TestVersionNamesVersionCommitAndGo(t *testing.T) {
	setting := func(key, value string) debug.BuildSetting { return debug.BuildSetting{Key: key, Value: value} }
	commit := setting("vcs.revision", "0123456789abcdef0123456789abcdef01234567")
	for want, test := range map[string]struct {
		linked, module string
		settings       []debug.BuildSetting
	}{
		"berth v1.2.3 (commit 0123456789ab)":           {"v1.2.3", "v0.0.0", []debug.BuildSetting{commit, setting("vcs.modified", "false")}},
		"berth v1.2.3 (commit 0123456789ab, modified)": {"v1.2.3", "", []debug.BuildSetting{commit, setting("vcs.modified", "true")}},
		"berth v0.9.0 (commit unknown)":                {"", "v0.9.0", nil},
		"berth devel (commit 0123456789ab)":            {"", "(devel)", []debug.BuildSetting{commit}},
		"berth devel (commit unknown)":                 {},
	} {
		info := &debug.BuildInfo{Main: debug.Module{Version: test.module}, Settings: test.settings}
		if got := describeBuild(test.linked, info); got != want+" "+runtime.Version() {
			t.Errorf("got %q, want %q and the Go version", got, want)
		}
	}
}

func TestVersionIsPrintedByCommandAndFlag(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		var out bytes.Buffer
		root := rootCommand()
		root.SetOut(&out)
		root.SetArgs([]string{arg})
		if err := root.Execute(); err != nil || out.String() != buildVersion()+"\n" {
			t.Errorf("berth %s prints %q, %v; want %q", arg, out.String(), err, buildVersion())
		}
	}
}
