//go:build !nos3 && !fileonly

package stores

import _ "github.com/hasplock/hasp/s3lock"
