-- For force_release.lua: returns all permits of a semaphore that have a lease.
local function force_permits()
    local kind = redis.call('HGET', KEYS[7], 'kind')
    if not kind and redis.call('ZSCORE', KEYS[8], 'latch') then
        return redis.error_reply('WRONGTYPE the name is in use as a latch')
    elseif not tonumber(redis.call('GET', KEYS[1])) then
        return redis.error_reply('WRONGTYPE the value stored under the name is not a lock')
    end
    local leases = kind == 'plain' and KEYS[6] or KEYS[5]
    local live = redis.call('ZCOUNT', leases, string.format('(%.0f', now), '+inf')
    local taken = redis.call('ZCARD', leases)
    redis.call('DEL', leases)
    for _, id in ipairs(redis.call('HKEYS', KEYS[7])) do
        if id ~= 'kind' then
            redis.call('HDEL', KEYS[7], id)
        end
    end
    return_permits(KEYS[1], ARGV[3], taken)
    return live > 0 and 1 or 0
end

