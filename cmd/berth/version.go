package main

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version overrides the version recorded by the build. Release builds set it with
// -ldflags "-X main.version=v1.2.3".
var version string

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print version, commit and Go version",
		Args:  cobra.NoArgs,
		Run:   func(cmd *cobra.Command, _ []string) { fmt.Fprintln(cmd.OutOrStdout(), buildVersion()) },
	}
}

// buildVersion describes this binary in one line.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = new(debug.BuildInfo)
	}
	return describeBuild(version, info)
}

// describeBuild returns a line like "berth v1.2.3 (commit 0123456789ab, modified) go1.26.0". The
// version is the linked one, else the module's, else "devel".
func describeBuild(linked string, info *debug.BuildInfo) string {
	recorded := info.Main.Version
	if recorded == "(devel)" {
		recorded = ""
	}
	commit, modified := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			commit = s.Value[:min(len(s.Value), 12)]
		case s.Key == "vcs.modified" && s.Value == "true":
			modified = ", modified"
		}
	}
	return fmt.Sprintf("berth %s (commit %s%s) %s", cmp.Or(linked, recorded, "devel"), cmp.Or(commit, "unknown"), modified, runtime.Version())
}
