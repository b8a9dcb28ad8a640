-- Sets how many permits a semaphore has, taken or not, for ever.
--
-- KEYS and ARGV as in semaphore.lua
-- Reply how many can be taken then
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
return left
