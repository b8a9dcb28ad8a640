-- The end of acquire_read.lua and acquire_write.lua: the hold is there already (`same`, with `count`), or nothing is in its
-- way, or the same named owner has it under another id. `mode` is how the lock is held then.
if not same and ARGV[3] ~= '1' then
    return {2}
end

local function lengthen(key)
    if redis.call('PTTL', key) < tonumber(ARGV[2]) then
        return redis.pcall('PEXPIRE', key, ARGV[2])
    end
end

if same then
    if count ~= ARGV[3] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    end
    local answer = lengthen(KEYS[1])
    if type(answer) ~= 'table' then
        answer = lengthen(KEYS[4])
    end
    return type(answer) == 'table' and answer or {1, token}
end

token = string.format('%.0f', new_tokens(1))
-- With PTTL, so that a user who may not ask for it, which `lengthen` does, fails before the first write.
local is_free = redis.call('PTTL', KEYS[1]) == -2
redis.call('HSET', KEYS[1], 'mode', mode, ARGV[1], ARGV[3])
-- The lock before the lease: by that a release knows the hold that ends last. Lua has no rollback: a user who may not set
-- an expiry must not leave a lock without one.
local answer = lengthen(KEYS[1])
if not answer or answer == 1 then
    answer = redis.pcall('SET', KEYS[4], token .. ':' .. ARGV[5], 'PX', ARGV[2])
end
if type(answer) == 'table' and answer.err then
    redis.call('HDEL', KEYS[1], ARGV[1])
    if is_free then
        redis.call('DEL', KEYS[1])
    end
    return answer
end
return {1, token}
