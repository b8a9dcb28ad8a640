-- Publishes to the channel that all nodes have in common.
local published = {}
local function publish(channel, message)
    table.insert(published, channel)
    table.insert(published, tostring(message))
    redis.pcall('PUBLISH', channel, message)
end

