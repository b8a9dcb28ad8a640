-- Frees a name, whoever holds it, in whatever way.
--
-- KEYS  1 the lock, of any kind  2 the id of an exclusive hold  3 the queue of a fair lock  4 its times  5 when leased permits end
--       6 when plain permits end that were taken with a lease  7 the book of a semaphore  8 what is known of latches
-- ARGV  1 channel of exclusive and fair locks  2 of read-write locks  3 of semaphores  4 what stands before fields in lease keys
-- Reply 1 if it was held, else 0
if redis.call('TYPE', KEYS[1]).ok == 'string' then
    return force_permits()
end
-- HGET refuses what is not a lock: DEL would not.
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode == 'read' or mode == 'write' then
    return force_read_write()
elseif redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.pcall('PUBLISH', ARGV[1], '0')
local known, head = pcall(first, KEYS[3], KEYS[4])
if known and head then
    redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
end
return 1
