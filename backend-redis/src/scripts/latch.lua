-- Latches, in the layout of Redisson's RCountDownLatch: a key with the count, which is missing
-- while the latch is open. A sorted set of our own has the requests that are remembered, with the
-- times until which they are, in epoch ms, and the member `latch` while the latch is closed. Needs
-- now.lua and exists.lua.
--
-- KEYS  1 the count
--       2 the state: remembered requests, and `latch`
--       3 the holds of a semaphore with this name
-- ARGV  1 id of the request
--       2 channel
local count = redis.call('GET', KEYS[1])
if count and exists(KEYS[3]) then
    return redis.error_reply('WRONGTYPE the name is in use as a semaphore')
elseif count and not tonumber(count) then
    return redis.error_reply('WRONGTYPE the value stored under the name is not a latch')
end
count = math.max(tonumber(count or 0), 0)

-- Times to live in ms: of a remembered request, and of the state of a latch that is not counted
-- down.
local REQUEST_TTL, LATCH_TTL = 60000, 30 * 24 * 3600 * 1000

-- Forgets old requests. This write works when memory is full. Coming first, it lets the other
-- writes go on as well.
local function forget_expired()
    redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
end

local function is_remembered(request)
    return redis.call('ZSCORE', KEYS[2], request .. ':' .. ARGV[1])
end

local function remember(request)
    redis.call('ZADD', KEYS[2], now + REQUEST_TTL, request .. ':' .. ARGV[1])
    local is_closed = redis.call('ZSCORE', KEYS[2], 'latch')
    local expiry = redis.pcall('PEXPIRE', KEYS[2], is_closed and LATCH_TTL or REQUEST_TTL)
    if expiry ~= 1 then
        -- Scripts are not rolled back. If the user has no right to set an expiry, the requests must
        -- not stay without one.
        redis.call('ZREM', KEYS[2], request .. ':' .. ARGV[1])
        error(expiry.err, 0)
    end
end

-- Opens the latch. Redisson's waiters continue when they get the message `0`, and would ask without
-- a pause as long as there is a count. So they are told if there is none, but before anything else
-- that may fail: nobody must wait for ever.
local function open_latch()
    local deleted = redis.pcall('DEL', KEYS[1])
    local is_deleted = type(deleted) == 'number'
    if is_deleted or count == 0 then
        redis.pcall('PUBLISH', ARGV[2], '0')
    end
    if not is_deleted then
        error(deleted.err, 0)
    end
    -- With pcall: whatever happens, the latch is open.
    redis.pcall('ZREM', KEYS[2], 'latch')
    redis.pcall('PEXPIRE', KEYS[2], REQUEST_TTL)
end
