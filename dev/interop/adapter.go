package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"syscall"
)

// ourClients are hasp's in other languages, which contend with no library here.
var ourClients = map[string]program{"hasplock": python, "hasp-lock": node}

// beAdapter is any client of this directory as an adapter of hasp-torture: the arguments are
// LIBRARY and, if it has several, KIND. A client in another language takes this process's place,
// and with it its group and its pipes.
func beAdapter(args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return fmt.Errorf("adapter takes LIBRARY [KIND], not %q", args)
	}
	p := pair{library: args[0]} // of Go, unless it is another's
	if of, ok := ourClients[args[0]]; ok {
		p.program = of
	} else if i := slices.IndexFunc(pairs, func(p pair) bool { return p.library == args[0] }); i >= 0 {
		p = pairs[i]
	}
	if len(args) == 2 {
		p.kind = args[1]
	}
	if p.program == golang {
		return beClient([]string{p.library, p.kind})
	}
	dir, err := defaultCache()
	if err != nil {
		return err
	}
	argv, env, err := (&cache{dir: dir, set: "new"}).command(p)
	if err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return syscall.Exec(path, append(argv, p.library, p.kind), append(os.Environ(), env...))
}
