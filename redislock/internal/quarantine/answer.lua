end
local answer = run()
if not tell or type(answer) == 'table' and answer.err then return answer end
return { 'mark', tell, unconfirmed or 0, answer }
