-- Sets the total number of permits of a semaphore. It has no expiry afterwards.
--
-- KEYS and ARGV are those of semaphore.lua.
-- Reply the number of permits that are available afterwards
local added = ARGV[3] - (available and available + taken or 0)
if not available then
    redis.call('DEL', KEYS[3], KEYS[4])
    redis.call('ZREM', KEYS[5], 'latch')
end
redis.call('HSET', KEYS[4], 'kind', ARGV[1])
local now_available = redis.call('INCRBY', KEYS[1], added)
redis.call('PERSIST', KEYS[1])
extend_ttl(KEYS[1], KEYS[3], KEYS[4])
if added > 0 then
    publish_available(ARGV[2], now_available)
end
return now_available
