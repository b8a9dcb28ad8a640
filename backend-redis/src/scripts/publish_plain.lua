-- Publishes to the channel that all nodes have in common.
local function publish(channel, message)
    return redis.pcall('PUBLISH', channel, message)
end

