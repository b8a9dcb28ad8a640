-- The end of acquire.lua and acquire_fair.lua: the hold is there already (`same`, with `count`), or the lock is free, or held
-- by the same named owner under another id, and the hold is to be taken.
if not same and ARGV[3] ~= '1' then
    return {2}
end
local token
if same then
    -- The last of those that were granted with it.
    local last = redis.call('GET', KEYS[2])
    local known = last and tonumber(last)
    token = known and known - tokens + 1
end
token = token or new_tokens(tokens)

if same then
    -- A repeated or nested request: the count is the one asked for, and the lease never gets shorter.
    if count ~= ARGV[3] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    end
    if left < tonumber(ARGV[2]) then
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
-- Lua has no rollback: a user who may not set an expiry must not leave a lock without one.
local expiry = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
if expiry ~= 1 then
    redis.call('DEL', KEYS[1])
    return expiry
end
return {1, token}
