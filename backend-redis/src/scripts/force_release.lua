-- Frees a lock, whoever holds it.
--
-- KEYS  1 the lock  2 the id of the hold
-- ARGV  1 channel
-- Reply 1 if it was held, else 0
-- HLEN refuses what is not a lock: DEL would not.
if redis.call('HLEN', KEYS[1]) == 0 then
    return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
redis.pcall('PUBLISH', ARGV[1], '0')
return 1
