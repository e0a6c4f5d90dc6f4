-- name: what the scripts on one name begin with; ARGV[1] is an id.
local K, id, now = KEYS[1], ARGV[1], nil
