-- Frees a lock, whoever holds it, fair or not: begins with queue.lua.
--
-- KEYS  1 the lock  2 not used  3 the id of the hold  4 the queue  5 its times
-- ARGV  1 channel
-- Reply 1 if it was held, else 0
-- HLEN refuses what is not a lock: DEL would not.
if redis.call('HLEN', KEYS[1]) == 0 then
    return 0
end
redis.call('DEL', KEYS[1], KEYS[3])
redis.pcall('PUBLISH', ARGV[1], '0')
local known, head = pcall(first)
if known and head then
    redis.pcall('PUBLISH', ARGV[1] .. ':' .. head, '0')
end
return 1
