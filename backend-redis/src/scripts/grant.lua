-- The end of acquire.lua and acquire_fair.lua: the hold is there already (`same`, with `count`), or the lock is free, or held
-- by the same named owner under another id, and the hold is to be taken.
if not same and ARGV[3] ~= '1' then
    return {2}
end

local stored = redis.call('GET', KEYS[2])
local token = tonumber(stored or 0) or 0
if not same or token == 0 then
    -- Tokens follow the server's clock in microseconds, so that they keep rising when the key is lost.
    local time = redis.call('TIME')
    token = math.max(token + 1, time[1] * 1000000 + time[2])
    if stored and redis.call('PTTL', KEYS[2]) == -1 then
        -- Redisson's fenced lock has made it, and counts on its staying.
        redis.call('SET', KEYS[2], string.format('%.0f', token))
    else
        redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', ARGV[4])
    end
end

if same then
    -- A repeated or nested request: the count is the one asked for, and the lease never gets shorter.
    if count ~= ARGV[3] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    end
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        if ARGV[5] ~= '' then
            redis.call('PEXPIRE', KEYS[3], ARGV[2])
        end
    end
    return {1, string.format('%.0f', token)}
end

if ARGV[5] ~= '' then
    redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[2])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
-- Lua has no rollback: a user who may not set an expiry must not leave a lock without one.
local expiry = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
if type(expiry) == 'table' and expiry.err then
    redis.call('DEL', KEYS[1])
    return expiry
end
return {1, string.format('%.0f', token)}
