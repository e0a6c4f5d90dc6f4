//go:build !nohttp

package stores

import _ "github.com/hasplock/hasp/httplock"
