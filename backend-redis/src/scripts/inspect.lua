-- Reports who holds a lock.
--
-- KEYS  1 the lock
-- Reply {ms left (-1 without end, -2 free), owner, count, owner, count, ...}
local reply = redis.call('HGETALL', KEYS[1])
table.insert(reply, 1, redis.call('PTTL', KEYS[1]))
return reply
