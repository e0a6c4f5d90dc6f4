//go:build !nopostgres

package stores

import _ "github.com/hasplock/hasp/pglock"
