package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth/config"
)

func checkCommand() *cobra.Command {
	var path string
	var show bool
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Validate a configuration and print every problem with its line and column",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, warnings, err := config.Load(path, checks)
			for _, w := range warnings {
				fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
			}
			if err != nil {
				return err
			}
			if show {
				_, err = cmd.OutOrStdout().Write(c.YAML())
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is valid\n", path)
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the YAML file to check")
	cmd.Flags().BoolVar(&show, "print", false, "print the effective configuration, with every default but those of policy arguments")
	cmd.MarkFlagRequired("config")
	return cmd
}
