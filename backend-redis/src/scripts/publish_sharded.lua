-- Publishes to the sharded channel.
local function send(channel, message)
    redis.pcall('SPUBLISH', channel, message)
end

