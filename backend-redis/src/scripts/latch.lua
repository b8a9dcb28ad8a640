-- Latches, as Redisson's RCountDownLatch has them: what is left to be counted down, if anything. Beside it, for ourselves, a
-- sorted set of the requests that are remembered, and until when, in epoch ms; and of `latch`, for ever, while there is one.
-- Needs now.lua.
--
-- KEYS  1 what is left  2 the requests  3 the book of a semaphore of the name
-- ARGV  1 id of the request  2 channel
local left = redis.call('GET', KEYS[1])
if left and redis.call('EXISTS', KEYS[3]) == 1 then
    return redis.error_reply('WRONGTYPE the name is in use as a semaphore')
elseif left and not tonumber(left) then
    return redis.error_reply('WRONGTYPE what is stored under the name is no latch')
end
left = math.max(tonumber(left or 0), 0)

-- For how many ms requests are remembered, and what is known of a latch that nobody counts down.
local MEMORY, KEPT = 60000, 30 * 24 * 3600 * 1000

-- Forgets old requests. It is the first write, and allowed when memory is full, so that the others are as well.
local function forget()
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
end

local function is_known(request)
    return redis.call('ZSCORE', KEYS[2], request .. ':' .. ARGV[1])
end

local function remember(request)
    redis.call('ZADD', KEYS[2], now + MEMORY, request .. ':' .. ARGV[1])
    local is_set = redis.call('ZSCORE', KEYS[2], 'latch')
    redis.call('PEXPIRE', KEYS[2], is_set and KEPT or MEMORY)
end

-- The message that Redisson's waiters go on for.
local function open()
    redis.call('ZREM', KEYS[2], 'latch')
    redis.call('DEL', KEYS[1])
    redis.call('PEXPIRE', KEYS[2], MEMORY)
    redis.pcall('PUBLISH', ARGV[2], '0')
end

