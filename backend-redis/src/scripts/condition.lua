-- Conditions: a queue of those who wait to be notified. Needs now.lua and queue.lua.
--
-- KEYS  1 the queue  2 its times

-- Whether somebody has a place that has not lapsed.
local function is_in(waiter)
    return tonumber(redis.call('ZSCORE', KEYS[2], waiter) or 0) > now
end

-- Keeps a place for so many ms. Nothing stays for ever: when the last place has lapsed, so have all.
local function keep(waiter, ms)
    redis.call('ZADD', KEYS[2], string.format('%.0f', now + ms), waiter)
    local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2]
    redis.call('PEXPIRE', KEYS[1], last - now)
    redis.call('PEXPIRE', KEYS[2], last - now)
end

-- Takes out up to so many, the first first, and tells each on a channel of its own. How many there were.
local function notify(count, channel)
    local notified = 0
    while notified < count do
        local waiter = first(KEYS[1], KEYS[2])
        if not waiter then
            break
        end
        redis.call('LPOP', KEYS[1])
        redis.call('ZREM', KEYS[2], waiter)
        -- Whoever is not told asks whether it is in still.
        redis.pcall('PUBLISH', channel .. ':' .. waiter, '1')
        notified = notified + 1
    end
    return notified
end

