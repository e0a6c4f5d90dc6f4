//go:build !noetcd

package stores

import _ "github.com/hasplock/hasp/etcdlock"
