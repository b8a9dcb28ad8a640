-- Publishes to the channel that all nodes have in common.
local function send(channel, message)
    redis.pcall('PUBLISH', channel, message)
end

