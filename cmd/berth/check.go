package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"berth/config"
)

func checkCommand() *cobra.Command {
	var path string
	var show, resolve bool
	cmd := &cobra.Command{
		Use:   "check --config FILE",
		Short: "Validate a configuration and print every problem with its line and column",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, warnings, err := config.Load(path, checks)
			warnings, err = checkReplicaFiles(c, warnings, err)
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
			explainSources(cmd.OutOrStdout(), c)
			if resolve {
				return resolveSources(cmd.Context(), cmd.OutOrStdout(), c)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&path, "config", "", "the YAML file to check")
	cmd.Flags().BoolVar(&show, "print", false, "print the effective configuration, with every default but those of policy arguments")
	cmd.Flags().BoolVar(&resolve, "resolve", false, "print the replicas that file, dns and kubernetes give now")
	cmd.MarkFlagRequired("config")
	cmd.MarkFlagsMutuallyExclusive("print", "resolve")
	return cmd
}

// explainSources prints where replicas come from, for the models whose replicas are not all in the
// configuration.
func explainSources(out io.Writer, c *config.Config) {
	for _, m := range c.Models {
		if !m.HasSource() {
			continue
		}
		if n := len(m.Replicas); n > 0 {
			fmt.Fprintf(out, "model %s: replicas of this configuration (%d)\n", m.ID, n)
		}
		if m.File != "" {
			fmt.Fprintf(out, "model %s: replicas in the file %s, read again when it changes\n", m.ID, m.File)
		}
		if m.DNS != nil {
			fmt.Fprintf(out, "model %s: replicas %s\n", m.ID, explainDNS(m.DNS))
		}
		if m.Kubernetes != nil {
			fmt.Fprintf(out, "model %s: replicas %s\n", m.ID, explainKubernetes(m.Kubernetes))
		}
	}
}

func explainDNS(d *config.DNS) string {
	text := fmt.Sprintf("at the addresses (%s) of %s, port %d", d.Type, d.Name, d.Port)
	if d.Type == "SRV" {
		text = fmt.Sprintf("at the targets and ports of %s (SRV, the best priority)", d.Name)
	}
	if d.Server != "" {
		text += ", from the DNS server " + d.Server
	}
	if d.Period > 0 {
		text += fmt.Sprintf(", looked up every %v", d.Period)
	} else {
		text += ", looked up by their TTL"
	}
	return text + fmt.Sprintf("; without records they are kept for %v", d.Keep)
}

func explainKubernetes(k *config.Kubernetes) string {
	text := "that are the ready pods of the Service " + k.Service
	if k.Selector != "" {
		text = "that are the ready pods with the labels " + k.Selector
	}
	switch {
	case k.Namespace != "":
		text += " in the namespace " + k.Namespace
	case k.Kubeconfig != "":
		text += " in the namespace of the kubeconfig's context"
	default:
		text += " in the namespace of berth's own pod"
	}
	if k.Port != "" {
		text += ", port " + k.Port
	} else {
		text += ", their only port"
	}
	if k.Kubeconfig != "" {
		return text + ", by the kubeconfig " + k.Kubeconfig
	}
	return text + ", by the service account of berth's own pod"
}
