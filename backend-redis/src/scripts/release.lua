-- Releases an exclusive hold, or lowers its count. A full release uses only commands that work
-- when memory is full.
--
-- KEYS  1 the lock
--       2 the id of the hold; for named owners only
-- ARGV  1 owner
--       2 hold count to set
--       3 channel
--       4 id of the hold
-- Reply 1 released, 2 still held, 0 there is no such hold
local count, mode = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'mode'))
if not count or mode == 'read' or mode == 'write'
    or KEYS[2] and redis.call('GET', KEYS[2]) ~= ARGV[4] then
    return 0
end
if ARGV[2] ~= '0' then
    if count ~= ARGV[2] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    end
    return 2
end
redis.call('DEL', KEYS[1])
if KEYS[2] then
    redis.call('DEL', KEYS[2])
end
-- With pcall: the lock is free, even if the user has no right to publish.
redis.pcall('PUBLISH', ARGV[3], '0')
return 1
