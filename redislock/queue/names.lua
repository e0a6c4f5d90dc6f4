-- names: for the script that goes through many names.
local K, id, now
