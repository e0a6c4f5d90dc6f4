//go:build !nokube && !fileonly

package stores

import _ "github.com/hasplock/hasp/kubelock"
