// Command berth serves a fleet of LLM servers under one OpenAI-compatible address. There is one
// file per subcommand.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"berth/config"
	"berth/ingress"
	"berth/internal/openai"
	"berth/llmserver/discovery"
	"berth/routers"
)

// checks validate the parts of a configuration unknown to package config.
var checks = config.Checks{
	Router: func(class string, kwargs map[string]any) error {
		_, err := routers.Lookup(class, kwargs)
		return err
	},
	Selector:     discovery.CheckSelector,
	MostBuffered: ingress.AffordableBufferedBytes(),
	ExtraPath: func(path string) error {
		if openai.IsManagementPath(path) {
			return fmt.Errorf("%s manages engines, which only the admin listener may do; remove it", path)
		}
		return nil
	},
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "An OpenAI-compatible ingress in front of a fleet of LLM servers",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	// Not cobra's Version and SetVersionTemplate: package text/template keeps the linker from
	// removing unused methods, which are a third of the binary.
	version := root.Flags().BoolP("version", "v", false, "print version, commit and Go version")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), buildVersion())
			return err
		}
		return cmd.Help()
	}
	root.AddCommand(serveCommand(), llmserverCommand(), replayCommand(), checkCommand(), versionCommand())
	return root
}

func main() {
	if err := rootCommand().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
