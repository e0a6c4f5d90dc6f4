//go:build !nokube

package stores

import _ "github.com/hasplock/hasp/kubelock"
