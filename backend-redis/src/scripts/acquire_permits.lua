-- Takes permits, all that are asked for or none.
--
-- KEYS and ARGV 1 to 3 as in semaphore.lua
-- ARGV  4 time to live of the token in ms  5 id of the hold  6 how many permits  7 lease in ms  8 owner
--       9 for how many ms the number of permits is kept at least
-- Reply {1, token}  acquired
--       {0, ms}     too few are left; the next lease ends in so long, -1 if none is known to end
--       {3, limit}  there are no more than so many
local count = tonumber(ARGV[6])
local ends = string.format('%.0f', now + ARGV[7])
local known, token = permits_of(KEYS[4], ARGV[5])
if available and known and is_live(KEYS[3], ARGV[5], known) then
    -- A repeated request. A write that is allowed when memory is full comes first, so that the others are.
    keep(KEYS[1], KEYS[3], KEYS[4], ARGV[9])
    for i = 1, known do
        local permit = permit_id(ARGV[5], i)
        if tonumber(redis.call('ZSCORE', KEYS[3], permit)) < tonumber(ends) then
            redis.call('ZADD', KEYS[3], ends, permit)
        end
    end
    return {1, token}
end

local total = available and available + taken or tonumber(ARGV[3])
if count > total and (ARGV[1] == 'leased' or not available) then
    return {3, math.max(total, 0)}
end
if count > 10000 then
    -- Each has a lease of its own, and the server does nothing else meanwhile.
    return redis.error_reply('ERR no hold can have more than 10000 permits')
end
if available and available < count then
    local next_end = tonumber(redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] or NEVER)
    return {0, next_end < NEVER and next_end - now or -1}
end

-- The first write, so that full memory refuses all.
token = string.format('%.0f', new_tokens(1))
-- A user who may not set an expiry, or ask for one, fails here, before there is anything without one.
redis.call('PTTL', KEYS[4])
redis.call('PEXPIRE', KEYS[4], ARGV[9])
-- What is left of an earlier semaphore of the name, or of an earlier hold that has partly ended, means nothing any more.
if not available then
    redis.call('DEL', KEYS[3], KEYS[4])
    redis.call('ZREM', KEYS[5], 'latch')
end
give_up(KEYS[1], KEYS[3], KEYS[4], ARGV[2], ARGV[5])
redis.call('HSET', KEYS[4], 'kind', ARGV[1], ARGV[5], ARGV[6] .. ':' .. token .. ':' .. ARGV[8])
if not available then
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[9])
end
keep(KEYS[1], KEYS[3], KEYS[4], ARGV[9])
redis.call('INCRBY', KEYS[1], -count)
for i = 1, count do
    local added = redis.pcall('ZADD', KEYS[3], ends, permit_id(ARGV[5], i))
    if type(added) == 'table' and added.err then
        -- Lua has no rollback: a user who may not do this must not keep permits that never end.
        redis.call('INCRBY', KEYS[1], count)
        return added
    end
end
keep(KEYS[1], KEYS[3], KEYS[4], ARGV[9])
return {1, token}
