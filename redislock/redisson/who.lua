-- who returns the ID and owner of the holder if they are stored, else its field.
local function who()
  local holder = redis.call('HKEYS', lock)[1]
  local noted = holder and redis.call('GET', KEYS[3]) or ''
  if holder and string.sub(noted, 1, #holder + 1) == holder .. ' ' then return string.sub(noted, #holder + 2) end
  return holder
end
