-- Publishes to the sharded channel.
local function publish(channel, message)
    return redis.pcall('SPUBLISH', channel, message)
end

