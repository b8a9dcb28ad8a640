-- Ends a read or write hold, or lowers its count, or gives up keeping readers out. The full release uses no command that fails when
-- memory is full: what has begun with HDEL is let go on.
--
-- KEYS  1 the lock: hash of mode and counts  2 the lease of the hold: its token and id  3 the writers that keep new readers out
-- ARGV  1 field  2 hold count to reach  3 channel  4 id of the hold  5 who keeps readers out: id and owner; empty for readers
--       6 what stands before fields in lease keys
-- Reply 1 released  2 the hold goes on  0 there is no such hold
local message = ARGV[5] == '' and '0' or '1'
local count = redis.call('HGET', KEYS[1], ARGV[1])
local _, id = hold_of(KEYS[2])
if not count or id ~= ARGV[4] then
    if ARGV[5] ~= '' and redis.call('ZREM', KEYS[3], ARGV[5]) == 1 then
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
-- The two may differ by the time between the commands that set them.
local is_last = left(KEYS[2]) + 2 >= left(KEYS[1]) or redis.call('HLEN', KEYS[1]) == 2
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
-- The lock lives as long as the longest hold. If that is another reader's, there is nothing to be seen to.
if is_last or is_writer(ARGV[1]) then
    local found = survey()
    clear(found)
    if not found.mode then
        redis.call('DEL', KEYS[1])
    else
        -- After a writer those remain that it has let in beside itself, and others may join them, which Redisson tells nobody.
        redis.call('HSET', KEYS[1], 'mode', found.mode)
        if found.last ~= math.huge then
            redis.call('PEXPIRE', KEYS[1], found.last)
        end
    end
    -- The lock is free, or to be had earlier than those who wait were told.
    redis.pcall('PUBLISH', ARGV[3], message)
    if message == '1' then
        -- Redisson's `1` wakes all who sleep, and is lost on one that is about to: for that one there is the other message, which waits.
        redis.pcall('PUBLISH', ARGV[3], '0')
    end
end
return 1
