-- For every script that runs on a node of a cluster, together with cluster_end.lua. While a slot
-- moves to another node, a key that is declared but not there fails the call; so some keys come
-- with the arguments.
--
-- KEYS  the first keys
-- ARGV  1 '1' if the reply is to have the messages that were published
--       2 number of further keys
--       then these, and the arguments of the script
local keys, args = {unpack(KEYS)}, {unpack(ARGV, 3)}
for _ = 1, tonumber(ARGV[2]) do
    table.insert(keys, table.remove(args, 1))
end

