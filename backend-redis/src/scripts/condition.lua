-- Conditions: a queue of the waiters that have not been notified. Needs now.lua and queue.lua.
--
-- KEYS  1 the queue
--       2 when its places expire

-- Returns true if the waiter has a place that has not expired.
local function is_queued(waiter)
    return tonumber(redis.call('ZSCORE', KEYS[2], waiter) or 0) > now
end

-- Keeps a place for `ms`. The queue expires with its last place.
local function keep_place(waiter, ms)
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + ms), waiter)
    local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
    redis.call('PEXPIRE', KEYS[1], last - now)
    redis.call('PEXPIRE', KEYS[2], last - now)
end

-- Removes up to `count` waiters from the head of the queue and publishes to the channel of each.
-- Returns the number of waiters that were removed.
local function notify(count, channel)
    local notified = 0
    while notified < count do
        local ok, waiter, _, expired = pcall(queue_head, KEYS[1], KEYS[2])
        if not ok then
            -- In a cluster, an empty queue cannot be read while its slot moves.
            if notified > 0 then
                break
            end
            error(waiter, 0)
        end
        remove_first(KEYS[1], KEYS[2], waiter and expired + 1 or expired)
        if not waiter then
            break
        end
        -- A waiter that misses the message learns of it when it asks to keep its place.
        redis.pcall('PUBLISH', channel .. ':' .. waiter, '1')
        notified = notified + 1
    end
    return notified
end

