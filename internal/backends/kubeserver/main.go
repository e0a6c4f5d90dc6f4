// Command kubeserver is a Kubernetes API server, from Kubernetes' own package.
//
// It is a separate module because that brings hundreds of modules, none of which belongs into the graph of a
// lock library.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
