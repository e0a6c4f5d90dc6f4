-- publish: ARGV id version value
--
-- Replaces the value of a held entry. 0: it does not hold, or is gone. A newer version stays: of
-- two requests of one holder the first may arrive after the second, which is already confirmed.
if not load() or not find() or not holds() then return 0 end
local _, _, expiry = parse(mine)
if expiry <= now then return 0 end
local there = tonumber(string.match(redis.call('HGET', K, 'b:' .. id) or '', '^%d+'))
if not there or there < tonumber(ARGV[2]) then
  put('b:' .. id, ARGV[2] .. ':' .. ARGV[3])
  valued = 1
  save()
end
return 1
