-- Releases a read or write hold, lowers its count, or stops blocking new readers. A full release
-- uses only commands that work when memory is full; once HDEL has run, the server lets the others
-- go on as well.
--
-- KEYS  1 the lock: hash of mode and counts
--       2 the lease of the hold: its token and id
-- ARGV  1 field
--       2 hold count to set
--       3 channel
--       4 id of the hold
--       5 id and owner, the entry of a writer among those that block readers; empty for readers
--       6 the key of the waiting writers that block new readers; empty for readers. Not among the
--         KEYS: in a cluster, a key that is not there can fail the call while its slot moves
--       7 the prefix of a field in its lease keys
-- Reply 1 released, 2 still held, 0 there is no such hold
local message = ARGV[5] == '' and '0' or '1'
local count = redis.call('HGET', KEYS[1], ARGV[1])
local _, id = read_lease(KEYS[2])
if not count or id ~= ARGV[4] then
    if ARGV[5] ~= '' and redis.call('ZREM', ARGV[6], ARGV[5]) == 1 then
        redis.pcall('PUBLISH', ARGV[3], message)
    end
    return 0
end
if ARGV[2] ~= '0' then
    if count ~= ARGV[2] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    end
    return 2
end
-- The expiries of the lock and of the lease may differ by the time between the two commands that
-- set them.
local is_last = ttl_of(KEYS[2]) + 2 >= ttl_of(KEYS[1]) or redis.call('HLEN', KEYS[1]) == 2
-- The lock lives as long as its longest hold. If that is another reader's, nothing else changes.
-- Read before the first write: it may fail, and what is written is not undone.
local found = (is_last or is_writer(ARGV[1])) and survey_holds(ARGV[1])
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
if found then
    remove_ended(found)
    if not found.mode then
        redis.call('DEL', KEYS[1])
    else
        -- After a writer, the readers inside its hold remain, and other readers may join them.
        -- Redisson does not publish that.
        redis.call('HSET', KEYS[1], 'mode', found.mode)
        if found.last ~= math.huge then
            redis.call('PEXPIRE', KEYS[1], found.last)
        end
    end
    -- The lock is free, or will be free earlier than the waiters were told.
    redis.pcall('PUBLISH', ARGV[3], message)
    if message == '1' then
        -- Redisson's `1` wakes every sleeping waiter but is lost on one that is about to sleep.
        -- The `0` is kept for that one.
        redis.pcall('PUBLISH', ARGV[3], '0')
    end
end
return 1
