-- Queues in the layout of Redisson's RFairLock: a list of waiters in order of arrival, and a sorted
-- set of the times at which their places expire, in epoch ms. Needs now.lua.

-- Returns the first waiter whose place has not expired, and for how many ms its place is kept.
-- Removes the expired places before it. A place without a time has expired.
local function queue_head(queue, expiries)
    while true do
        local waiter = redis.call('LINDEX', queue, 0)
        if not waiter then
            return nil
        end
        local kept = (tonumber(redis.call('ZSCORE', expiries, waiter) or 0)) - now
        if kept > 0 then
            return waiter, kept
        end
        redis.call('LPOP', queue)
        redis.call('ZREM', expiries, waiter)
    end
end

-- Removes a waiter from the queue. Returns true if it was in the list.
local function leave_queue(queue, expiries, waiter)
    redis.call('ZREM', expiries, waiter)
    return redis.call('LREM', queue, 0, waiter) > 0
end

