-- Publishes to the sharded channel.
local published = {}
local function publish(channel, message)
    table.insert(published, channel)
    table.insert(published, tostring(message))
    redis.pcall('SPUBLISH', channel, message)
end

