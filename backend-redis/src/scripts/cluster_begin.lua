-- For every script that runs on a node of a cluster, together with cluster_end.lua. While a slot
-- moves to another node, a key that is declared but not there fails the call; so some keys come
-- with the arguments.
--
-- KEYS  the first keys. A batch has none, since its keys are in different slots
-- ARGV  1 '1' if the slot is on its way to this node. Then keys that are not declared may still be
--         where it comes from, and the reply is to have the messages that were published
--       2 number of further keys
--       then these, and the arguments of the script
local keys, args = KEYS, {}
local further = 2 + ARGV[2]
for i = 3, further do
    keys[#keys + 1] = ARGV[i]
end
for i = further + 1, #ARGV do
    args[#args + 1] = ARGV[i]
end

local function is_moving()
    return ARGV[1] == '1'
end

-- The messages that were published, each as a channel and its message.
local published = {}

-- Takes the place of PUBLISH. `send` differs by the kind of channels.
local function publish(channel, message)
    table.insert(published, channel)
    table.insert(published, tostring(message))
    send(channel, message)
end

