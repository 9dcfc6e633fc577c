// Command berth serves a fleet of LLM servers under one OpenAI-compatible
// address. Each subcommand has a file of its own.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"berth/config"
	"berth/ingress"
	"berth/internal/openai"
	"berth/routers"
)

// checks are what a configuration must pass beyond its own form.
var checks = config.Checks{
	Router: func(class string, kwargs map[string]any) error {
		_, err := routers.Lookup(class, kwargs)
		return err
	},
	MostBuffered: ingress.AffordableBufferedBytes(),
	ExtraPath: func(path string) error {
		if openai.IsManagementPath(path) {
			return fmt.Errorf("%s manages engines, which is for the admin listener alone; remove it", path)
		}
		return nil
	},
}

func main() {
	root := &cobra.Command{
		Use:           "berth",
		Short:         "An OpenAI-compatible ingress in front of a fleet of LLM servers",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(serveCommand(), llmserverCommand(), replayCommand(), checkCommand(), versionCommand())
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
