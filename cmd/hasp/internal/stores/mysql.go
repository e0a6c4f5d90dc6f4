//go:build !nomysql

package stores

import _ "github.com/hasplock/hasp/mysqllock"
