package redisfence

import "sync"

// head is the beginning of every script: it compares and raises, and takes its own key and
// argument away, so that what follows sees only its caller's.
//
// Tokens are compared as decimal numbers of text, by length and then by digits. As Lua's
// numbers, which are doubles, those above 2^53 would be equal to their neighbours.
//
// The answer is {seen} if the token is stale and {false, result} otherwise: false is a nil in
// the protocol, which no token is.
const head = `
local token = table.remove(ARGV, 1)
local fence = table.remove(KEYS, 1)
local seen = redis.call('GET', fence) or '0'
if seen ~= '0' and not string.find(seen, '^[1-9]%d*$') then
  return redis.error_reply('ERR ' .. fence .. ' is no fence: it holds something else')
end
if #token < #seen or #token == #seen and token < seen then
  return {seen}
end
if token ~= seen then
  redis.call('SET', fence, token)
end
`

// advance only raises.
const advance = head + `return {false, true}`

// commands runs those that are written one behind the other in ARGV, each behind the number
// of its words. redis.pcall and not call: the error of the third must not hide the results of
// the first two, which have been done.
const commands = head + `
local results, at = {}, 1
while at <= #ARGV do
  local n = tonumber(ARGV[at])
  local result = redis.pcall(unpack(ARGV, at + 1, at + n))
  if type(result) == 'table' and result.err then
    return redis.error_reply(result.err .. ' (command ' .. (#results + 1) .. '; those before it were done)')
  end
  results[#results + 1] = result
  at = at + 1 + n
end
return {false, results}
`

// wrapped are the users' scripts behind the head. A program has a handful, so none is dropped.
var wrapped sync.Map // script -> string

func wrap(script string) string {
	if w, ok := wrapped.Load(script); ok {
		return w.(string)
	}
	// A function of its own, so that its returns are its result and not ours. The newline
	// ends a comment in its last line.
	w, _ := wrapped.LoadOrStore(script, head+"local result = (function()\n"+script+"\nend)()\n"+
		"if type(result) == 'table' and result.err then return result end\n"+
		"if result == nil then result = false end\n"+
		"return {false, result}")
	return w.(string)
}
