-- In the scripts that take a hold: fencing tokens.
--
-- KEYS  2 the last token of the name, shared with Redisson's RFencedLock
-- ARGV  4 its time to live in ms
local last_token = redis.call('GET', KEYS[2])

-- A token greater than every earlier one.
local function new_token()
    -- Tokens follow the server's clock in microseconds, so that they keep rising when the key is lost.
    local time = redis.call('TIME')
    local token = math.max((tonumber(last_token or 0) or 0) + 1, time[1] * 1000000 + time[2])
    token = string.format('%.0f', token)
    if last_token and redis.call('PTTL', KEYS[2]) == -1 then
        -- Redisson's fenced lock has made it, and counts on its staying.
        redis.call('SET', KEYS[2], token)
    else
        redis.call('SET', KEYS[2], token, 'PX', ARGV[4])
    end
    return token
end

