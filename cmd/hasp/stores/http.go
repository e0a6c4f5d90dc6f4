//go:build !nohttp && !fileonly

package stores

import _ "github.com/hasplock/hasp/httplock"
