//go:build !nozookeeper

package main

import _ "github.com/hasplock/hasp/zklock"
