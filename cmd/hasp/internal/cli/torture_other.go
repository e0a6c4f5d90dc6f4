//go:build !unix

package cli

import "github.com/spf13/cobra"

// tortureVerbs are for systems that can stop a process.
func (a *app) tortureVerbs() []*cobra.Command { return nil }
