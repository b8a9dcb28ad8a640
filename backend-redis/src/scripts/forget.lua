-- Deletes the last token of a name that nobody holds or waits for. Needs now.lua.
--
-- KEYS  1 the lock
--       2 the last token of the name, shared with Redisson's RFencedLock
--       3 the queue of a fair lock
-- Reply 1 if there was one, 0 if not, or if it is needed
if redis.call('EXISTS', KEYS[1], KEYS[3]) > 0 then
    return 0
end
-- Without an end it is Redisson's, which counts on from it. One that is ahead of the clock has to be
-- followed as well: the next one would begin with the clock.
local token = tonumber(redis.call('GET', KEYS[2]) or nil)
local clock = server_time[1] * 1000000 + server_time[2]
if not token or redis.call('PTTL', KEYS[2]) == -1 or token >= clock then
    return 0
end
return redis.call('DEL', KEYS[2])
