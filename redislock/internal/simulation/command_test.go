package simulation

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// status is an answer like OK, failure one like WRONGTYPE.
type (
	status  string
	failure string
)

const wrongType failure = "WRONGTYPE Operation against a key holding the wrong kind of value"

// command is one of those that the scripts use. denied: it is refused while memory is full.
type command struct {
	run    func(e *execution, args []string) any
	least  int // arguments
	denied bool
	writes bool
}

var commands map[string]command

func init() { // which refers to itself, by the functions
	commands = map[string]command{
		"TIME":      {(*execution).time, 0, false, false},
		"INFO":      {(*execution).info, 0, false, false},
		"PUBLISH":   {(*execution).publish, 2, false, false},
		"TYPE":      {(*execution).typeOf, 1, false, false},
		"EXISTS":    {(*execution).exists, 1, false, false},
		"PTTL":      {(*execution).pttl, 1, false, false},
		"GET":       {(*execution).get, 1, false, false},
		"GETRANGE":  {(*execution).getRange, 3, false, false},
		"HGET":      {(*execution).hget, 2, false, false},
		"HMGET":     {(*execution).hmget, 2, false, false},
		"HEXISTS":   {(*execution).hexists, 2, false, false},
		"HGETALL":   {(*execution).hgetall, 1, false, false},
		"HKEYS":     {(*execution).hkeys, 1, false, false},
		"HLEN":      {(*execution).hlen, 1, false, false},
		"ZRANGE":    {(*execution).zrange, 3, false, false},
		"ZRANK":     {(*execution).zrank, 2, false, false},
		"DEL":       {(*execution).del, 1, false, true},
		"PEXPIRE":   {(*execution).pexpire, 2, false, true},
		"PEXPIREAT": {(*execution).pexpireAt, 2, false, true},
		"SET":       {(*execution).set, 2, true, true},
		"HSET":      {(*execution).hset, 3, true, true},
		"HINCRBY":   {(*execution).hincrby, 3, true, true},
		"HDEL":      {(*execution).hdel, 2, false, true},
		"ZADD":      {(*execution).zadd, 3, true, true},
		"ZREM":      {(*execution).zrem, 2, false, true},
		"ZPOPMIN":   {(*execution).zpopmin, 1, false, true},
	}
}

// do runs a command, as redis.call does.
func (e *execution) do(args []string) any {
	name := strings.ToUpper(args[0])
	c, known := commands[name]
	switch {
	case !known:
		return failure("ERR Unknown Redis command called from script")
	case len(args)-1 < c.least:
		return failure("ERR Wrong number of args calling Redis command from script")
	case c.writes && e.server.master != nil:
		return failure("READONLY You can't write against a read only replica.")
	case c.denied && e.server.full && !e.wrote:
		return failure("OOM command not allowed when used memory > 'maxmemory'.")
	}
	e.server.counts[strings.ToLower(name)]++
	return c.run(e, args[1:])
}

// find returns a key that has not expired. The server removes one that has, and tells its replicas.
func (e *execution) find(key string) *value {
	v := e.db()[key]
	if v != nil && v.expires != 0 && v.expires <= e.now/1000 {
		if e.server.master != nil {
			return nil // its master removes it
		}
		e.remove(key)
		return nil
	}
	return v
}

func (e *execution) db() map[string]*value { return e.server.data.db[e.dbIndex] }

func (e *execution) remove(key string) {
	delete(e.db(), key)
	e.wrote = true
}

// typed is find for a command on one kind of value: ok is false if the key has another.
func (e *execution) typed(key string, k kind) (v *value, ok bool) {
	v = e.find(key)
	return v, v == nil || v.kind == k
}

// made is typed for a command that makes the key if there is none.
func (e *execution) made(key string, k kind) (v *value, ok bool) {
	if v, ok = e.typed(key, k); v == nil {
		v = &value{kind: k}
		switch k {
		case hashKind:
			v.hash = map[string]string{}
		case zsetKind:
			v.scores = map[string]float64{}
		}
		e.db()[key] = v
	}
	return v, ok
}

func (e *execution) time([]string) any {
	return []any{strconv.FormatInt(e.now/1e6, 10), strconv.FormatInt(e.now%1e6, 10)}
}

func (e *execution) publish(args []string) any {
	n := e.server.listeners(args[0])
	e.published = append(e.published, message{args[0], args[1]})
	return n
}

func (e *execution) typeOf(args []string) any {
	if v := e.find(args[0]); v != nil {
		return status(v.kind)
	}
	return status("none")
}

func (e *execution) exists(args []string) any {
	n := int64(0)
	for _, key := range args {
		if e.find(key) != nil {
			n++
		}
	}
	return n
}

func (e *execution) del(args []string) any {
	n := int64(0)
	for _, key := range args {
		if e.find(key) != nil {
			e.remove(key)
			n++
		}
	}
	return n
}

func (e *execution) pttl(args []string) any {
	v := e.find(args[0])
	switch {
	case v == nil:
		return int64(-2)
	case v.expires == 0:
		return int64(-1)
	}
	return v.expires - e.now/1000
}

const notInteger failure = "ERR value is not an integer or out of range"

func (e *execution) pexpire(args []string) any {
	return e.expireAt(args, e.now/1000)
}

func (e *execution) pexpireAt(args []string) any {
	return e.expireAt(args, 0)
}

func (e *execution) expireAt(args []string, base int64) any {
	ms, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return notInteger
	}
	v := e.find(args[0])
	if v == nil {
		return int64(0)
	}
	if v.expires = base + ms; v.expires <= e.now/1000 {
		e.remove(args[0])
	}
	e.wrote = true
	return int64(1)
}

func (e *execution) get(args []string) any {
	v, ok := e.typed(args[0], stringKind)
	switch {
	case !ok:
		return wrongType
	case v == nil:
		return nil
	}
	return v.text
}

func (e *execution) getRange(args []string) any {
	v, ok := e.typed(args[0], stringKind)
	from, err1 := strconv.Atoi(args[1])
	to, err2 := strconv.Atoi(args[2])
	switch {
	case err1 != nil || err2 != nil || from < 0 || to < 0:
		return notInteger // what counts from the end is not asked for
	case !ok:
		return wrongType
	case v == nil || from >= len(v.text):
		return ""
	}
	return v.text[from:min(to+1, len(v.text))]
}

// set knows PX and KEEPTTL.
func (e *execution) set(args []string) any {
	v := &value{kind: stringKind, text: args[1]}
	for i := 2; i < len(args); i++ {
		switch strings.ToUpper(args[i]) {
		case "KEEPTTL":
			if old := e.find(args[0]); old != nil {
				v.expires = old.expires
			}
		case "PX":
			if i++; i == len(args) {
				return failure("ERR syntax error")
			}
			ms, err := strconv.ParseInt(args[i], 10, 64)
			if err != nil {
				return notInteger
			}
			if ms <= 0 {
				return failure("ERR invalid expire time in 'set' command")
			}
			v.expires = e.now/1000 + ms
		default:
			return failure("ERR syntax error")
		}
	}
	e.db()[args[0]] = v
	e.wrote = true
	return status("OK")
}

func (e *execution) hget(args []string) any {
	v, ok := e.typed(args[0], hashKind)
	switch {
	case !ok:
		return wrongType
	case v == nil:
		return nil
	}
	return field(v, args[1])
}

func field(v *value, name string) any {
	if text, there := v.hash[name]; there {
		return text
	}
	return nil
}

func (e *execution) hmget(args []string) any {
	v, ok := e.typed(args[0], hashKind)
	if !ok {
		return wrongType
	}
	all := make([]any, len(args)-1)
	for i, name := range args[1:] {
		if v != nil {
			all[i] = field(v, name)
		}
	}
	return all
}

func (e *execution) hexists(args []string) any {
	v, ok := e.typed(args[0], hashKind)
	switch {
	case !ok:
		return wrongType
	case v == nil || field(v, args[1]) == nil:
		return int64(0)
	}
	return int64(1)
}

// hgetall and hkeys answer in any order, as Redis does for hashes that are not small.
func (e *execution) hgetall(args []string) any {
	v, ok := e.typed(args[0], hashKind)
	if !ok {
		return wrongType
	}
	all := []any{}
	if v != nil {
		for _, name := range slices.Sorted(maps.Keys(v.hash)) {
			all = append(all, name, v.hash[name])
		}
	}
	return all
}

func (e *execution) hkeys(args []string) any {
	v, ok := e.typed(args[0], hashKind)
	if !ok {
		return wrongType
	}
	all := []any{}
	if v != nil {
		for _, name := range slices.Sorted(maps.Keys(v.hash)) {
			all = append(all, name)
		}
	}
	return all
}

func (e *execution) hlen(args []string) any {
	v, ok := e.typed(args[0], hashKind)
	switch {
	case !ok:
		return wrongType
	case v == nil:
		return int64(0)
	}
	return int64(len(v.hash))
}

func (e *execution) hset(args []string) any {
	if len(args)%2 == 0 {
		return failure("ERR wrong number of arguments for 'hset' command")
	}
	v, ok := e.made(args[0], hashKind)
	if !ok {
		return wrongType
	}
	n := int64(0)
	for i := 1; i < len(args); i += 2 {
		if _, there := v.hash[args[i]]; !there {
			n++
		}
		v.hash[args[i]] = args[i+1]
	}
	e.wrote = true
	return n
}

func (e *execution) hincrby(args []string) any {
	by, err := strconv.ParseInt(args[2], 10, 64)
	if err != nil {
		return notInteger
	}
	if v, ok := e.typed(args[0], hashKind); !ok {
		return wrongType
	} else if v != nil {
		old, there := v.hash[args[1]]
		n, err := strconv.ParseInt(old, 10, 64)
		if there && err != nil {
			return failure("ERR hash value is not an integer")
		}
		by += n
	}
	v, _ := e.made(args[0], hashKind)
	v.hash[args[1]] = strconv.FormatInt(by, 10)
	e.wrote = true
	return by
}

func (e *execution) hdel(args []string) any {
	v, ok := e.typed(args[0], hashKind)
	if !ok {
		return wrongType
	}
	n := int64(0)
	if v == nil {
		return n
	}
	for _, name := range args[1:] {
		if _, there := v.hash[name]; there {
			delete(v.hash, name)
			e.wrote = true
			n++
		}
	}
	if len(v.hash) == 0 {
		e.remove(args[0])
	}
	return n
}

func (e *execution) zadd(args []string) any {
	score, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return failure("ERR value is not a valid float")
	}
	v, ok := e.made(args[0], zsetKind)
	if !ok {
		return wrongType
	}
	old, there := v.scores[args[2]]
	if there && old == score {
		return int64(0)
	}
	v.scores[args[2]], e.wrote = score, true
	if there {
		return int64(0)
	}
	return int64(1)
}

func (e *execution) zrem(args []string) any {
	v, ok := e.typed(args[0], zsetKind)
	switch {
	case !ok:
		return wrongType
	case v == nil:
		return int64(0)
	}
	n := int64(0)
	for _, member := range args[1:] {
		if _, there := v.scores[member]; there {
			delete(v.scores, member)
			e.wrote = true
			n++
		}
	}
	if len(v.scores) == 0 {
		e.remove(args[0])
	}
	return n
}

// ordered are the members by score, then by name.
func (v *value) ordered() []string {
	return slices.SortedFunc(maps.Keys(v.scores), func(a, b string) int {
		switch {
		case v.scores[a] < v.scores[b]:
			return -1
		case v.scores[a] > v.scores[b]:
			return 1
		}
		return strings.Compare(a, b)
	})
}

func (e *execution) zpopmin(args []string) any {
	v, ok := e.typed(args[0], zsetKind)
	switch {
	case !ok:
		return wrongType
	case v == nil:
		return []any{}
	}
	first := v.ordered()[0]
	score := strconv.FormatFloat(v.scores[first], 'g', 17, 64)
	e.zrem([]string{args[0], first})
	return []any{first, score}
}

func (e *execution) zrange(args []string) any {
	v, ok := e.typed(args[0], zsetKind)
	if !ok {
		return wrongType
	}
	from, err1 := strconv.Atoi(args[1])
	to, err2 := strconv.Atoi(args[2])
	if err1 != nil || err2 != nil || from < 0 || to < 0 {
		return notInteger // as getRange
	}
	all := []any{}
	if v == nil {
		return all
	}
	for i, member := range v.ordered() {
		if from <= i && i <= to {
			all = append(all, member)
		}
	}
	return all
}

func (e *execution) zrank(args []string) any {
	v, ok := e.typed(args[0], zsetKind)
	switch {
	case !ok:
		return wrongType
	case v == nil:
		return nil
	}
	if at := slices.Index(v.ordered(), args[1]); at >= 0 {
		return int64(at)
	}
	return nil
}

// info has the fields that scripts look at, in the form of Redis.
func (e *execution) info(args []string) any {
	if e.noInfo {
		return failure("ERR The user executing the script can't run this command or subcommand")
	}
	s := e.server
	section := ""
	if len(args) > 0 {
		section = strings.ToLower(args[0])
	}
	var b strings.Builder
	line := func(of, name string, value any) {
		if section == "" || section == of {
			fmt.Fprintf(&b, "%s:%v\r\n", name, value)
		}
	}
	line("server", "redis_version", "7.0.15")
	line("server", "run_id", s.runID)
	line("server", "uptime_in_seconds", (e.now-s.started)/1e6)
	line("stats", "evicted_keys", s.evicted)
	role := "master"
	if s.master != nil {
		role = "slave"
	}
	line("replication", "role", role)
	line("replication", "connected_slaves", len(s.connected()))
	line("replication", "master_replid", s.replID)
	line("replication", "master_repl_offset", s.offset)
	line("replication", "second_repl_offset", s.second.offset)
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		line("commandstats", "cmdstat_"+name, fmt.Sprintf("calls=%d,usec=1", s.counts[name]))
	}
	return b.String()
}
