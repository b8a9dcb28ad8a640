-- Sets the count of a latch that has none.
--
-- KEYS and ARGV 1 and 2 are those of latch.lua. In addition:
-- ARGV  3 count
-- Reply 1 if the count was set, 0 if the latch had one
if is_remembered('set') then
    return 1
elseif count > 0 or is_remembered('refused') then
    forget_expired()
    remember('refused')
    return 0
end
redis.call('SET', KEYS[1], ARGV[3])
local ok, failure = pcall(function()
    -- Removes what is left of a semaphore with this name.
    redis.call('DEL', KEYS[3])
    forget_expired()
    redis.call('ZADD', KEYS[2], '+inf', 'latch')
    remember('set')
end)
if not ok then
    -- Scripts are not rolled back. If the user lacks a right, no count must stay behind.
    redis.call('DEL', KEYS[1])
    redis.pcall('ZREM', KEYS[2], 'latch')
    error(failure, 0)
end
-- Redisson has listeners that are told of a new count.
redis.pcall('PUBLISH', ARGV[2], '1')
return 1
