//go:build unix && !linux

package cli

func oldKernel() { inScript() }
