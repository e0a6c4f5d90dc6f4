// Package simulation runs whole clients of redislock (core, session, pushed queue, Guard) and its
// real scripts in fake time, on servers that are Go maps. So it runs thousands of schedules a minute
// of what takes real servers days: restarts with older files, failovers, masters that serve on,
// requests that arrive late or elsewhere.
//
// A schedule is a list of lines: see operation. A violation prints the shortest one that it finds;
// TestTrace shows all that happens in it.
//
//	server_test.go, replication_test.go, data_test.go   a process of Redis, its history, its data
//	command_test.go, lua_test.go, pattern_test.go       its commands, and scripts by gopher-lua
//	world_test.go, cluster_test.go, conn_test.go, client_test.go   how requests reach it
//	steps_test.go, change_test.go, run_test.go          schedules
//	checks_test.go                                      what must not happen
//	model_test.go, twin_test.go                         a simulated server answers as Redis does
//	history_test.go                                     as do its restarts, failovers and WAIT
//	kept_test.go, planted_test.go                       schedules that showed a fault, faults that must be shown
//	generate_test.go, random_test.go, shrink_test.go    random schedules
package simulation
