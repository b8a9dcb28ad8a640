-- For acquire_fair.lua and release_fair.lua. Needs queue.lua.

-- As Redisson does when a waiter is granted the hold: subtracts what its place, for which it had
-- asked for `time` ms, has added to the places counted from it. Among waiters of this backend,
-- places are not counted from each other: then the next one is kept for no longer than its time.
local function subtract(queue, expiries, time)
    local next = time ~= '0' and redis.call('LINDEX', queue, 0)
    local later = now + 2 * time
    if not next or tonumber(redis.call('ZSCORE', expiries, next) or 0) <= later then
        return
    end
    later = string.format('(%.0f', later)
    for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', expiries, later, '+inf')) do
        redis.call('ZINCRBY', expiries, '-' .. time, waiter)
    end
end

