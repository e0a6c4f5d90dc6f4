-- names: the start of the script on many names.
local K, id, now
