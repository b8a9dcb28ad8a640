-- Gives a latch a count if it has none.
--
-- KEYS and ARGV 1 and 2 as in latch.lua
-- ARGV  3 count
-- Reply 1 if it had none, else 0
if is_known('set') then
    return 1
elseif left > 0 or is_known('refused') then
    forget()
    remember('refused')
    return 0
end
redis.call('SET', KEYS[1], ARGV[3])
-- What is left of a semaphore of the name means nothing any more.
redis.call('DEL', KEYS[3])
forget()
redis.call('ZADD', KEYS[2], '+inf', 'latch')
remember('set')
-- As Redisson has it, whose listeners are told of a new count.
redis.pcall('PUBLISH', ARGV[2], '1')
return 1
