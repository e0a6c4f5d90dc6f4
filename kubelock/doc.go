// Package kubelock keeps locks in a Kubernetes cluster: one Lease (coordination.k8s.io/v1) a name,
// in the format of client-go's leader election, so that hasp and controllers that elect by
// client-go keep each other out.
//
// It registers the scheme kube with hasp: kube://namespace, in a pod or by a kubeconfig.
// docs/backends/kubernetes.md has its options, the rights that it needs, and what it costs: each
// pair of lock and unlock is two writes in the cluster's own etcd, so it is for some locks a
// second. The scheme is that of package caslock.
package kubelock
