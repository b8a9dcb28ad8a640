-- In the scripts that take a hold: fencing tokens.
--
-- KEYS  2 the last token of the name, shared with Redisson's RFencedLock
-- ARGV  4 its time to live in ms
-- In ms, and in the microseconds of tokens.
local DAY = 86400000
local HOUR = 3600000000

local function last_token()
    return redis.call('GET', KEYS[2])
end

-- The first of so many tokens, all greater than every earlier one.
local function new_tokens(count)
    local last = last_token()
    local known = tonumber(last or 0) or 0
    -- Tokens follow the server's clock in microseconds, so that they keep rising when the key is lost.
    local time = redis.call('TIME')
    local micros = time[1] * 1000000 + time[2]
    local token = math.max(known + 1, micros)
    local kept = string.format('%.0f', token + count - 1)
    -- What Redisson's fenced lock has made has no expiry, and it counts on its staying. Our own need not be put off again within the hour.
    local is_recent = known < micros and math.floor(known / HOUR) == math.floor(micros / HOUR) and tonumber(ARGV[4]) <= DAY
    if last and (is_recent or redis.call('PTTL', KEYS[2]) == -1) then
        redis.call('SET', KEYS[2], kept, 'KEEPTTL')
    else
        redis.call('SET', KEYS[2], kept, 'PX', ARGV[4])
    end
    return string.format('%.0f', token)
end

