// Package stores links every store there is into a command, but the one in memory: a command's memory
// ends with it. Each store with a client library is in a file that a build can leave out: -tags
// noetcd,nokube,nomysql,nopostgres,noredis,nos3,nozookeeper,nohttp; and fileonly leaves out all.
// Not internal: hasp-torture links the same, and is another module.
package stores

import _ "github.com/hasplock/hasp/filelock"
