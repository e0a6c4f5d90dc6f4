//go:build !nomysql && !fileonly

package stores

import _ "github.com/hasplock/hasp/mysqllock"
