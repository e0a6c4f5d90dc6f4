package redisfence

import "sync"

// head is the beginning of every script: it compares and raises, and removes its own key and
// argument, so that the rest sees only those of its caller.
//
// Tokens are compared as decimal numbers of text, by length and then by digits. As Lua's
// numbers, which are doubles, those above 2^53 would be equal to their neighbours.
//
// The answer is {seen} if the token is stale and {false, result} otherwise: false becomes nil in
// the protocol, which is never a token.
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

// advance only raises the fence.
const advance = head + `return {false, true}`

// commands runs the commands in ARGV, each preceded by the number of its words. It uses redis.pcall
// and not call: the error of the third must not hide the results of the first two, which have taken
// effect.
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

// wrapped are the users' scripts with the head before them. A program has a handful, so none is
// dropped.
var wrapped sync.Map // script -> string

func wrap(script string) string {
	if w, ok := wrapped.Load(script); ok {
		return w.(string)
	}
	// A separate function, so that its return statements end only the user's part. The newline ends
	// a comment in its last line.
	w, _ := wrapped.LoadOrStore(script, head+"local result = (function()\n"+script+"\nend)()\n"+
		"if type(result) == 'table' and result.err then return result end\n"+
		"if result == nil then result = false end\n"+
		"return {false, result}")
	return w.(string)
}
