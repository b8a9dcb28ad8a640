-- For acquire_permits.lua and resize.lua: reads the state of the semaphore. `available` is the
-- number of available permits, or nil if the name is free. `taken` is the number of permits known
-- to be taken.
--
-- KEYS  1 the counter of available permits
--       2 the last fencing token
--       3 when each permit ends
--       4 the holds
--       5 the state of a latch with this name
-- ARGV  1 `leased` or `plain`
--       2 channel
--       3 the total number of permits: to set, or to use if none is stored
local available = redis.call('GET', KEYS[1])
local taken, expired = 0, 0
if available then
    local kind = redis.call('HGET', KEYS[4], 'kind')
    if kind and kind ~= ARGV[1] then
        return redis.error_reply(
            'WRONGTYPE the name is in use as a semaphore with ' .. kind .. ' permits'
        )
    elseif not kind and redis.call('ZSCORE', KEYS[5], 'latch') then
        return redis.error_reply('WRONGTYPE the name is in use as a latch')
    elseif not tonumber(available) then
        return redis.error_reply('WRONGTYPE the value stored under the name is not a semaphore')
    end
    expired = redis.call('ZCOUNT', KEYS[3], '-inf', now)
    available = available + expired
    taken = redis.call('ZCARD', KEYS[3]) - expired
else
    -- Remains of an earlier semaphore will be deleted. If the key belongs to a lock whose name
    -- equals the key, ZCARD refuses its type.
    redis.call('ZCARD', KEYS[3])
end

-- Returns the permits whose leases have ended, which `available` contains. Not before a write that
-- fails if memory is full.
local function return_expired()
    if expired > 0 then
        local count = redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
        return_permits(KEYS[1], ARGV[2], count)
    end
    if available then
        prune_holds(KEYS[3], KEYS[4])
    end
end

