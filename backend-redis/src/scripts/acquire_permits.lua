-- Acquires permits, either all that are requested or none.
--
-- KEYS and ARGV 1 to 3 are those of semaphore.lua. In addition:
-- ARGV  4 time to live of the token in ms
--       5 id of the hold
--       6 number of permits
--       7 lease in ms
--       8 owner
--       9 the minimum time to live of the counter in ms
-- Reply {1, token}  acquired
--       {0, ms}     too few are available; the next lease ends in that time, -1 if none is known to
--       {3, limit}  the semaphore has no more permits than `limit`
local count = tonumber(ARGV[6])
local ends = string.format('%.0f', now + ARGV[7])
local stored_count, token = stored_permits(KEYS[4], ARGV[5])
if available and stored_count and is_live(KEYS[3], ARGV[5], stored_count) then
    -- A repeated request. This write works when memory is full. Coming first, it lets the other
    -- writes go on as well.
    extend_ttl(KEYS[1], KEYS[3], KEYS[4], ARGV[9])
    extend_leases(KEYS[3], ARGV[5], stored_count, ends)
    return {1, token}
end

local total = available and available + taken or tonumber(ARGV[3])
if count > total and (ARGV[1] == 'leased' or not available) then
    return {3, math.max(total, 0)}
end
if count > 10000 then
    -- Each permit has a lease of its own, and the server is blocked while the script stores them.
    return redis.error_reply('ERR a hold cannot have more than 10000 permits')
end
if available and available < count then
    return_expired()
    local next_end = tonumber(redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2] or NEVER)
    return {0, next_end < NEVER and next_end - now or -1}
end

-- The first write: if memory is full, it fails, and nothing has been stored.
token = string.format('%.0f', issue_tokens(1))
-- A user without the right to set or read an expiry fails here, before any key is created.
redis.call('PTTL', KEYS[4])
redis.call('PEXPIRE', KEYS[4], ARGV[9])
return_expired()
-- Removes what is left of an earlier semaphore or latch, and of an earlier hold with this id, some
-- of whose permits may have ended.
if not available then
    redis.call('DEL', KEYS[3])
    redis.call('DEL', KEYS[4])
    redis.call('ZREM', KEYS[5], 'latch')
end
end_hold(KEYS[1], KEYS[3], KEYS[4], ARGV[2], ARGV[5])
redis.call('HSET', KEYS[4], 'kind', ARGV[1], ARGV[5], ARGV[6] .. ':' .. token .. ':' .. ARGV[8])
if not available then
    redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[9])
end
extend_ttl(KEYS[1], KEYS[3], KEYS[4], ARGV[9])
redis.call('INCRBY', KEYS[1], -count)
for _, permits in ipairs(permit_lists(ARGV[5], count)) do
    local added = redis.pcall('ZADD', KEYS[3], unpack(with_end(permits, ends)))
    if type(added) == 'table' then
        -- Scripts are not rolled back. If the user has no right to store leases, the permits must
        -- not stay taken without one.
        redis.call('INCRBY', KEYS[1], count)
        return added
    end
end
extend_ttl(KEYS[1], KEYS[3], KEYS[4], ARGV[9])
return {1, token}
