//go:build !nomysql

package main

import _ "github.com/hasplock/hasp/mysqllock"
