-- For acquire_fair.lua and release_fair.lua. Needs queue.lua.

-- Takes a waiter out of the queue, because it is granted the hold. Returns true if it had a place,
-- for which it had asked for `time` ms.
--
-- As Redisson does, subtracts what this place has added to the places counted from it.
local function leave_for_hold(queue, expiries, numbers, waiter, time)
    if not leave_queue(queue, expiries, waiter) then
        return false
    end
    redis.call('HDEL', numbers, waiter)
    if time == '0' then
        return true
    end
    local later = string.format('(%.0f', now + 2 * time)
    for _, other in ipairs(redis.call('ZRANGEBYSCORE', expiries, later, '+inf')) do
        redis.call('ZINCRBY', expiries, '-' .. time, other)
    end
    return true
end

