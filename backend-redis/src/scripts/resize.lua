-- Sets the total number of permits of a semaphore. It has no expiry afterwards.
--
-- KEYS and ARGV 1 to 3 are those of semaphore.lua. In addition:
-- ARGV  4 `1` to keep a number that was set before, else `0`
-- Reply 1 if the number was set, 0 if an earlier number was kept

-- A number that comes from an acquisition only has an expiry, and a `kind` among the holds.
if ARGV[4] == '1' and available
    and (redis.call('PTTL', KEYS[1]) == -1 or not redis.call('HGET', KEYS[4], 'kind')) then
    return 0
end
local added = ARGV[3] - (available and available + taken or 0)
-- The first write: if memory is full, it fails.
redis.call('HSET', KEYS[4], 'kind', ARGV[1])
if not available then
    redis.call('DEL', KEYS[3])
    redis.call('DEL', KEYS[4])
    redis.call('ZREM', KEYS[5], 'latch')
    redis.call('HSET', KEYS[4], 'kind', ARGV[1])
end
return_expired()
local now_available = redis.call('INCRBY', KEYS[1], added)
redis.call('PERSIST', KEYS[1])
extend_ttl(KEYS[1], KEYS[3], KEYS[4])
if added > 0 then
    publish_available(ARGV[2], now_available)
end
return 1
