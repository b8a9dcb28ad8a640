-- Fencing tokens, for the scripts that grant a hold.
--
-- KEYS  2 the last token of the name, shared with Redisson's RFencedLock
-- ARGV  4 time to live of that token in ms

-- A day in ms. Tokens of the same period have the same first six of 16 digits, which
-- acquire_free.lua and batch_begin.lua compare. It is 2.8 hours in microseconds.
local DAY = 86400000
local PERIOD = 10000000000

-- Issues `count` consecutive tokens, all greater than every earlier one, at the server's `time` if
-- the script knows it already. If the client proposes `least`, the first is that one, unless it has
-- to be greater. Returns the first, and that time in microseconds, or nil if it was not needed. Both
-- are numbers: they are whole and below 2^53, and the server writes all their digits. Lua's own
-- conversion to a string would not.
local function issue_tokens(count, time, least)
    local stored = redis.call('GET', KEYS[2])
    local last = stored and tonumber(stored) or 0
    local is_usual = ARGV[4] - DAY <= 0
    -- A key of ours needs a new expiry once in a period, unless it has to live longer than usual. It
    -- was to live for a day after the clock has come to a token of that period.
    local function is_of_period(token)
        return is_usual and last >= token - token % PERIOD
    end
    if least and goes_on(last) then
        local next = math.max(last + 1, least)
        if is_of_period(next) then
            redis.call('SET', KEYS[2], next + count - 1, 'KEEPTTL')
            return next
        end
    end
    -- Tokens follow the server's clock in microseconds, so they keep rising if the key is lost.
    time = time or redis.call('TIME')
    local micros = time[1] * 1000000 + time[2]
    if not least and last < micros and is_of_period(micros) then
        redis.call('SET', KEYS[2], micros + count - 1, 'KEEPTTL')
        return micros, micros
    end
    local bound = micros
    if least then
        -- Without the key, the last token may be as late as the clock.
        bound = goes_on(last) and least or math.max(micros, least)
    end
    local token = math.max(last + 1, bound)
    store_token(KEYS[2], token + count - 1, stored, micros, ARGV[4])
    return token, micros
end
