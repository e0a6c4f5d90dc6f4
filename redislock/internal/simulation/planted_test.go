package simulation

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/hasplock/hasp/internal/testtier"
)

// planted are faults that the simulation must find, each an edit of the scripts: by random schedules
// of a family, or by a kept schedule.
var planted = []struct {
	name, family, kept string
	edits              []edit
}{
	{name: "the reign is not compared in the usual case", kept: "row 3: an older file", edits: []edit{
		{"and string.find(replication, 'master_replid:' .. reign, 1, true) then", "then"}}},
	{name: "any mark is of this reign", family: "failover", edits: []edit{{"how = this == reign,", "how = reign and true or false,"}}},
	{name: "the quarantine is half a TTL", family: "one server", edits: []edit{{"0 or complete + span", "0 or complete + span / 2"}}},
	{name: "what clients were told does not count", family: "another server", edits: []edit{{"if sawStart > (", "if false and sawStart > ("}}},
	{name: "another database is not noticed", family: "another database", edits: []edit{{"if sawStart > (", "if false and sawStart > ("}}},
	{name: "FLUSHALL and eviction are not noticed", family: "one server", edits: []edit{{"and before == '0' then", "then"}}},
	{name: "a promotion is not noticed", family: "failover", edits: []edit{
		{"promoted = info('server'), run, not string.find(replication, 'second_repl_offset:-1', 1, true)", "promoted = info('server'), run, false"},
		{"'cluster|migrat', 'slaveof', 'replicaof' }", "'cluster|migrat' }"}}},
	{name: "uptime is a proof although there is a mark", kept: "F6", edits: []edit{{"elseif m[1] == false and not promoted", "elseif not promoted"}, {"math.min(3600, ", "math.min(1e9, "}}},
	{name: "INFO forgets no promotion", kept: "a promotion that INFO has forgotten: no mark", edits: []edit{{"math.min(3600, ", "math.min(1e9, "}}},
	{name: "INFO forgets no promotion of the same process", kept: "a promotion that INFO has forgotten: the mark", edits: []edit{{"bound <= 3.6e9 and ", ""}}},
	{name: "any confirmation is of this mark", kept: "F5", edits: []edit{{"how == 'c' and sawID == id)", "how == 'c')"}}},
	{name: "who was promoted once closes each time", kept: "F8", edits: []edit{
		{"complete, how = this == reign,", "complete, how = this == reign and string.find(replication, 'second_repl_offset:-1', 1, true) ~= nil,"},
		{" and string.find(replication, 'master_replid:' .. reign, 1, true) then", " and string.find(replication, 'second_repl_offset:-1', 1, true) and string.find(replication, 'master_replid:' .. reign, 1, true) then"}}},
	{name: "a value that is there is not written again", kept: "row 5", edits: []edit{
		{"put('b:' .. id, stays and present or ARGV[2] .. ':' .. ARGV[3])", "if not stays then put('b:' .. id, ARGV[2] .. ':' .. ARGV[3]) end"}, {"save(stays)", "if not stays then save() end"}}},
	{name: "an entry that is adopted again is not written", kept: "row 5", edits: []edit{
		{"  extendKey(ARGV[5])\n  save(true)\n  return 1", "  return 1"}}},
	{name: "no replica has to confirm the mark", kept: "two masters", edits: []edit{{"complete == now and how ~= '-' and 0 or", ""}}},
	{name: "any other ID is evidence", kept: "F9", edits: []edit{{"(same and sawID == id and start or complete)", "(sawID == id and start or 0)"}}},
	{name: "facts of a node do not count", kept: "row 8: a slot at its first use", edits: []edit{{"elseif hash and hash == sawFacts then", "elseif false then"}}},
	{name: "a new entry is granted in a quarantine", family: "one server", edits: []edit{{"and closed <= now and (m[1]", "and (m[1]"}, {"<= cap and closed <= now", "<= cap"}}},
	{name: "a release grants in a quarantine", family: "one server", edits: []edit{{"held + units > cap or closed > now then", "held + units > cap then"}, {"if only and closed <= now then", "if only then"}}},
	{name: "setnx takes in a quarantine", family: "one server", edits: []edit{{"or not holder and closed > 0 then", "then"}}},
	{name: "redisson takes in a quarantine", family: "one server", edits: []edit{{"if not mine and closed > 0 then", "if false then"}}},
	{name: "a Seq is drawn before another draws", kept: "row 4", edits: []edit{
		{"local new = math.max(seq + 1, now)\nif new >=", "if new >="}, {"cap = capacity\nif head", "cap = capacity\nlocal new = math.max(seq + 1, now)\nif head"}}},
	{name: "a waiter keeps the Seq that it had before a quarantine", family: "two masters", edits: []edit{{"elseif redis.call('HDEL', K, 'k:' .. who) == 0 and", "elseif false and"}}},
	{name: "a token does not begin with the clock", family: "one server", edits: []edit{
		{"last = math.max(last + 1, micros())", "last = last + 1"}, {"math.max(seq + 1, now)", "seq + 1"}, {"last and math.max(last + 1, now)", "last and last + 1"}}},
	{name: "a renewal extends nothing", family: "one server", edits: []edit{{"pack(who, s, now + ttl, units, rest)", "pack(who, s, expiry, units, rest)"}}},
	{name: "a holder expires early", family: "one server", edits: []edit{{"if expiry <= now then freeOne(who) end", "if expiry <= now + 8000000 then freeOne(who) end"},
		{"if n == 0 or now < nextExpiry then return end", "if n == 0 then return end"}, {"or not cap or tonumber(expiry) <= now", "or not cap or tonumber(expiry) <= now + 8000000"}}},
	{name: "a writer fits beside a reader", family: "several holders", edits: []edit{{"local fits = head > tail and held + units <= cap", "local fits = head > tail and held < cap"}}},
	{name: "setnx gives back the lock of another", kept: "a release arrives", edits: []edit{{"if not mine(redis.call('GET', lock), ARGV[1]) then return 0 end", ""}}},
	{name: "an observer asks on when a holder has expired", family: "a clock that is set back", edits: []edit{{"\npurge()\nif head <= tail then promote() end\n", "\n"}, {"\npurge()\npromote()\n", "\n"}}},
}

func TestPlanted(t *testing.T) {
	for _, p := range planted {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			in := newInterpreter()
			if p.kept != "" {
				for _, k := range kept {
					if strings.HasPrefix(k.name, p.kept) && len(scheduleOf(k.text).run(t, in, p.edits, nil)) > 0 {
						return
					}
				}
				t.Fatal("not found")
			}
			if testing.Short() {
				testtier.Long(t)
			}
			for seed := range uint64(6000) {
				for i := range families {
					if f := &families[i]; f.name == p.family {
						if wrong := f.generate(rand.New(rand.NewPCG(seed, 1))).run(t, in, p.edits, nil); len(wrong) > 0 {
							t.Logf("found by schedule %d: %s: %s", seed, wrong[0].kind, wrong[0].text)
							return
						}
					}
				}
			}
			t.Error("not found by 6,000 schedules")
		})
	}
}
