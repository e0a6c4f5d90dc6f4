//go:build !unix

package cli

import "github.com/hasplock/hasp/internal/exit"

func (*app) export([]string, *runFlags, *exportFlags) error {
	return exit.Misconfigured("hold --export is for Unix shells; hasp hold without it, and the library, can be used here")
}

func (*app) background([]string, *runFlags, *exportFlags) error {
	return exit.Misconfigured("hold --background is for Unix; hasp hold without it, and the library, can be used here")
}
