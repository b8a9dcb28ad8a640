-- Queues in the layout of Redisson's RFairLock: a list of waiters in order of arrival, and a sorted
-- set of the times at which their places expire, in epoch ms. Needs now.lua.

-- Returns the first waiter whose place has not expired, for how many ms its place is kept, and the
-- number of expired places before it. A place without a time has expired. Writes nothing: a script
-- that writes goes on although memory is full.
local function queue_head(queue, expiries)
    local expired = 0
    while true do
        local waiter = redis.call('LINDEX', queue, expired)
        if not waiter then
            return nil, nil, expired
        end
        local kept = (tonumber(redis.call('ZSCORE', expiries, waiter) or 0)) - now
        if kept > 0 then
            return waiter, kept, expired
        end
        expired = expired + 1
    end
end

-- Removes the first places of a queue, and what is kept of each waiter in the hash `numbers`, if
-- there is one.
local function remove_first(queue, expiries, count, numbers)
    for _ = 1, count do
        -- In this order: if the user lacks a right, whoever has a time is still in the list.
        local waiter = redis.call('LINDEX', queue, 0)
        redis.call('ZREM', expiries, waiter)
        redis.call('LPOP', queue)
        if numbers then
            redis.call('HDEL', numbers, waiter)
        end
    end
end

-- Removes a waiter from the queue. Returns true if it was in the list.
local function leave_queue(queue, expiries, waiter)
    redis.call('ZREM', expiries, waiter)
    return redis.call('LREM', queue, 0, waiter) > 0
end

