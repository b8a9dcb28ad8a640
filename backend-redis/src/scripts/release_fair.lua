-- Ends a hold of a fair lock, lowers its count, or gives up a place in the queue. The full release uses no
-- command that fails when memory is full.
--
-- KEYS  1 the lock  2 not used  3 the id of the hold  4 the queue  5 its times
-- ARGV  1 owner  2 hold count to reach  3 channel, without the owner that is to hear of it  4 id of the hold, empty if the owner is
--       not a named one
-- Reply 1 released  2 the hold goes on  0 there is no such hold
local function wake(head)
    if head then
        redis.pcall('PUBLISH', ARGV[3] .. ':' .. head, '0')
    end
end

local count, mode = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'mode'))
if mode == 'read' or mode == 'write' then
    count = false
end
if not count or ARGV[4] ~= '' and redis.call('GET', KEYS[3]) ~= ARGV[4] then
    if not count and leave(KEYS[4], KEYS[5], ARGV[1]) then
        wake(first(KEYS[4], KEYS[5]))
    end
    return 0
end
if ARGV[2] ~= '0' then
    if count ~= ARGV[2] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    end
    return 2
end
-- Before anything is changed: a queue of the wrong type must not fail a release half done.
local known, head = pcall(first, KEYS[4], KEYS[5])
redis.call('DEL', KEYS[1])
if ARGV[4] ~= '' then
    redis.call('DEL', KEYS[3])
end
wake(known and head)
-- Whoever waits for the lock without queueing is told as well.
redis.pcall('PUBLISH', ARGV[3], '0')
return 1
