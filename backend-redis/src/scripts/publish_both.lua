-- Publishes to the sharded channel, and to the one that all nodes have in common.
local function publish(channel, message)
    redis.pcall('SPUBLISH', channel, message)
    return redis.pcall('PUBLISH', channel, message)
end

