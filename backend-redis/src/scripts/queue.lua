-- Queues, as Redisson's RFairLock has one: a list of those who wait, the first of them first, and a sorted set of when their places
-- lapse, in epoch ms. Needs now.lua.

-- The first whose place has not lapsed, and for how many ms it is kept. Places without a time have lapsed.
local function first(queue, times)
    while true do
        local waiter = redis.call('LINDEX', queue, 0)
        if not waiter then
            return nil
        end
        local kept = (tonumber(redis.call('ZSCORE', times, waiter) or 0)) - now
        if kept > 0 then
            return waiter, kept
        end
        redis.call('LPOP', queue)
        redis.call('ZREM', times, waiter)
    end
end

-- Takes somebody out of the queue. Whether it was in.
local function leave(queue, times, waiter)
    redis.call('ZREM', times, waiter)
    return redis.call('LREM', queue, 0, waiter) > 0
end

