end
local answer = run()
-- A try is told that memory is full, as all others are by their first write.
if refused and type(answer) == 'table' and (answer[1] == 'closed' or answer[5] == 'closed') then
  return redis.error_reply((string.gsub(refused.err, '^@user_script: %d+: %-', ''))) -- Redis 6 puts that before it
end
if not tell or type(answer) == 'table' and answer.err then return answer end
return { 'mark', tell, unconfirmed and 1 or 0, facts or '', answer }
