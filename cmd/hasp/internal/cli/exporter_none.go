//go:build noexporter

package cli

import "github.com/spf13/cobra"

func (a *app) optionalVerbs() []*cobra.Command { return nil }
