-- Returns true if the key is there. In a cluster, while its slot moves to another node, one cannot
-- ask for a key that is not.
local function exists(key)
    local reply = redis.pcall('EXISTS', key)
    if type(reply) == 'table' and not string.find(reply.err, 'non local key', 1, true) then
        error(reply.err, 0)
    end
    return reply == 1
end

