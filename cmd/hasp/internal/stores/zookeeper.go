//go:build !nozookeeper

package stores

import _ "github.com/hasplock/hasp/zklock"
