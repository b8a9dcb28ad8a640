-- Publishes to the sharded channel, and to the one that all nodes have in common.
local function send(channel, message)
    redis.pcall('SPUBLISH', channel, message)
    redis.pcall('PUBLISH', channel, message)
end

