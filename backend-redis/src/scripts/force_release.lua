-- Frees a name, whoever holds it and in whatever mode.
--
-- KEYS  1 the lock, of any kind
--       2 the id of an exclusive hold
--       3 the queue of a fair lock
--       4 when the places in it expire
--       5 when leased permits end
--       6 when plain permits that were taken with a lease end
--       7 the holds of a semaphore
--       8 the state of a latch
-- ARGV  1 channel of exclusive and fair locks
--       2 channel of read-write locks
--       3 channel of semaphores
--       4 the prefix of a field in its lease keys
-- Reply 1 if the name was held, else 0
if redis.call('TYPE', KEYS[1]).ok == 'string' then
    return force_permits()
end
-- HGET fails for a key that is not a lock, which DEL would delete.
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode == 'read' or mode == 'write' then
    return force_read_write()
elseif redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
end
local ok, head = pcall(queue_head, KEYS[3], KEYS[4])
redis.call('DEL', KEYS[1])
-- With pcall: in a cluster, a key that is not there cannot be deleted while its slot moves.
redis.pcall('DEL', KEYS[2])
-- As release_fair.lua: those in the queue need no other message, if the first one is told.
redis.pcall('PUBLISH', ARGV[1], ok and head and '00' or '0')
-- A client that keeps the lock for its tasks must not hand it to one more.
redis.pcall('PUBLISH', ARGV[1] .. ':wanted', '2')
if ok and head then
    redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
end
return 1
