//go:build !noetcd && !fileonly

package stores

import _ "github.com/hasplock/hasp/etcdlock"
