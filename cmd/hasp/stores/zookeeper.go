//go:build !nozookeeper && !fileonly

package stores

import _ "github.com/hasplock/hasp/zklock"
