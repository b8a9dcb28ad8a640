-- Sets how many permits a semaphore has, taken or not, for ever.
--
-- KEYS and ARGV as in semaphore.lua
-- ARGV  4 1 if a number that was set before stays, else 0
-- Reply 1 if the number was set, 0 if it stays
--
-- A number that only an acquisition has said is in our book, and has an expiry.
if ARGV[4] == '1' and available
    and (redis.call('PTTL', KEYS[1]) == -1 or not redis.call('HGET', KEYS[4], 'kind')) then
    return 0
end
local more = ARGV[3] - (available and available + taken or 0)
if not available then
    redis.call('DEL', KEYS[3], KEYS[4])
    redis.call('ZREM', KEYS[5], 'latch')
end
redis.call('HSET', KEYS[4], 'kind', ARGV[1])
local left = redis.call('INCRBY', KEYS[1], more)
redis.call('PERSIST', KEYS[1])
keep(KEYS[1], KEYS[3], KEYS[4])
if more > 0 then
    publish(ARGV[2], left)
end
return 1
