-- The end of acquire.lua and acquire_fair.lua, after issue.lua: stores the hold. Either it is
-- already stored (`is_same_hold`, with `count`), or the lock is free, or the same named owner holds
-- it with another id.
if is_same_hold then
    -- A repeated or nested request sets the count, and never shortens the lease.
    if count ~= ARGV[3] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    end
    if remaining < tonumber(ARGV[2]) then
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        if ARGV[5] ~= '' then
            redis.call('PEXPIRE', KEYS[3], ARGV[2])
        end
    end
    return {1, token}
end

if ARGV[5] ~= '' then
    redis.call('SET', KEYS[3], ARGV[5], 'PX', ARGV[2])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
-- Scripts are not rolled back. If the user has no right to set an expiry, the lock must not stay
-- without one.
local expiry = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
if expiry ~= 1 then
    redis.call('DEL', KEYS[1])
    return expiry
end
if ends_earlier then
    -- The end of a lease is not published, so the waiters have to learn of the new one now.
    redis.pcall('PUBLISH', ARGV[7], '0')
end
return {1, token, micros}
