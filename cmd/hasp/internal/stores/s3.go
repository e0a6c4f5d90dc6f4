//go:build !nos3

package stores

import _ "github.com/hasplock/hasp/s3lock"
