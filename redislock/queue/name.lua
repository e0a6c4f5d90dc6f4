-- name: the start of the scripts on one name; ARGV[1] is an id.
local K, id, now = KEYS[1], ARGV[1], nil
