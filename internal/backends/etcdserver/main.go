// Command etcdserver is one member of a current etcd, from etcd's own embed package.
// It reads etcd's own configuration file (https://etcd.io/docs, "Configuration file").
//
// It is a separate module because etcd's server brings more than a hundred modules, none of which
// belongs into the graph of a lock library.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"go.etcd.io/etcd/server/v3/embed"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "etcdserver:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("usage: etcdserver CONFIGURATION.yml")
	}
	cfg, err := embed.ConfigFromFile(args[0])
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1) // one slot: Notify does not wait for us
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)

	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-stop:
		return nil
	case err := <-e.Err():
		return err
	}
}
