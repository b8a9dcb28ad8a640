-- The end of acquire_read.lua and acquire_write.lua: grants the hold. Either it is already stored
-- (`is_same_hold`, with `count`), or nothing excludes it, or the same named owner has it with
-- another id. `mode` is the mode of the lock afterwards.
if not is_same_hold and ARGV[3] ~= '1' then
    return {2}
end

local function extend(key)
    if redis.call('PTTL', key) < tonumber(ARGV[2]) then
        return redis.pcall('PEXPIRE', key, ARGV[2])
    end
end

-- Not before the first write of what is stored, which fails if memory is full.
local function clean_up()
    if found then
        remove_ended(found)
    end
    if place then
        redis.call('ZREM', KEYS[4], ARGV[7])
    end
end

if is_same_hold then
    if count ~= ARGV[3] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
    end
    local reply = extend(KEYS[1])
    if type(reply) ~= 'table' then
        reply = extend(KEYS[3])
    end
    clean_up()
    return type(reply) == 'table' and reply or {1, token}
end

-- Read before the first write, which cannot be undone.
local ends_earlier = announced > tonumber(ARGV[2])
local last = ends_earlier and count and survey_holds(ARGV[1]).last
token = string.format('%.0f', issue_tokens(1))
clean_up()
-- Uses PTTL, as `extend` does, so that a user without the right to it fails before the first write.
local is_free = redis.call('PTTL', KEYS[1]) == -2
redis.call('HSET', KEYS[1], 'mode', mode, ARGV[1], ARGV[3])
-- The lock is extended before the lease is stored: a release recognizes the last hold by that
-- order. Scripts are not rolled back, so if the user has no right to set an expiry, the lock must
-- not stay without one.
local reply = extend(KEYS[1])
if not reply or reply == 1 then
    reply = redis.pcall('SET', KEYS[3], token .. ':' .. ARGV[5], 'PX', ARGV[2])
end
if type(reply) == 'table' and reply.err then
    redis.call('HDEL', KEYS[1], ARGV[1])
    if is_free then
        redis.call('DEL', KEYS[1])
    end
    return reply
end
if ends_earlier then
    -- The hold ends earlier than what it replaces. The end of a lease is not published, so the
    -- waiters have to learn of it now. As after a writer, `1` wakes every waiter of Redisson's that
    -- sleeps, and `0` is kept for one that is about to.
    if last and last ~= math.huge then
        -- The lock lives as long as its longest hold, which Redisson relies on.
        redis.pcall('PEXPIRE', KEYS[1], math.max(last, ARGV[2]))
    end
    redis.pcall('PUBLISH', ARGV[8], '1')
    redis.pcall('PUBLISH', ARGV[8], '0')
end
return {1, token}
