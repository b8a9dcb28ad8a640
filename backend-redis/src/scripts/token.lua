-- In the scripts that take a hold: fencing tokens.
--
-- KEYS  2 the last token of the name, shared with Redisson's RFencedLock
-- ARGV  4 its time to live in ms
-- In ms, and in the microseconds of tokens.
local DAY = 86400000
local HOUR = 3600000000

-- The first of so many tokens, all greater than every earlier one. A number: it is whole and below 2^53, and the server writes all
-- digits of it, which Lua does not when it makes a string of one.
local function new_tokens(count)
    local last = redis.call('GET', KEYS[2])
    local known = last and tonumber(last) or 0
    -- Tokens follow the server's clock in microseconds, so that they keep rising when the key is lost.
    local time = redis.call('TIME')
    local micros = time[1] * 1000000 + time[2]
    -- Our own need not be put off again within the hour, unless it is to stay for longer than usual.
    if known < micros and known >= micros - micros % HOUR and ARGV[4] - DAY <= 0 then
        redis.call('SET', KEYS[2], micros + count - 1, 'KEEPTTL')
        return micros
    end
    local token = known >= micros and known + 1 or micros
    -- What Redisson's fenced lock has made has no expiry, and it counts on its staying.
    if last and redis.call('PTTL', KEYS[2]) == -1 then
        redis.call('SET', KEYS[2], token + count - 1, 'KEEPTTL')
    else
        redis.call('SET', KEYS[2], token + count - 1, 'PX', ARGV[4])
    end
    return token
end

