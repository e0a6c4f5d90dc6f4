//go:build !nopostgres && !fileonly

package stores

import _ "github.com/hasplock/hasp/pglock"
