-- Deletes the last token of a name that nobody holds.
--
-- KEYS  1 the lock
--       2 the last token of the name, shared with Redisson's RFencedLock
-- Reply 1 if there was one, 0 if not or if the lock is held
if redis.call('EXISTS', KEYS[1]) == 1 then
    return 0
end
return redis.call('DEL', KEYS[2])
