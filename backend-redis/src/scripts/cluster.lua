-- For every script that runs on a node of a cluster. While a slot moves to another node, a key that
-- is declared but not there fails the call; so some keys come with the arguments.
--
-- KEYS  the first keys
-- ARGV  1 number of further keys
--       then these, and the arguments of the script
local KEYS, ARGV = {unpack(KEYS)}, {unpack(ARGV)}
for _ = 1, tonumber(table.remove(ARGV, 1)) do
    table.insert(KEYS, table.remove(ARGV, 1))
end

