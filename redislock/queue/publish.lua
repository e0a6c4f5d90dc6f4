-- publish: ARGV id value
-- Replaces the value of an entry that holds. 0: it does not, or is gone.
if not load() then return 0 end
local _, _, expiry, place = parse(mine)
if expiry <= clock() or string.sub(place, 1, 1) ~= 'h' then return 0 end
save('b:' .. id, ARGV[2])
return 1
