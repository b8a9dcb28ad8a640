-- In acquire_permits.lua and resize.lua: what is there of the semaphore. `available` is how many permits can be taken, nothing
-- if the name is free, and `taken` how many are, as far as that is known.
--
-- KEYS  1 the number of permits  2 the last fencing token  3 when each permit ends  4 the book  5 what is known of latches
-- ARGV  1 `leased` or `plain`  2 channel  3 how many permits there are, to be set or if the store does not know
local available = redis.call('GET', KEYS[1])
local taken = 0
if available then
    local kind = redis.call('HGET', KEYS[4], 'kind')
    if kind and kind ~= ARGV[1] then
        return redis.error_reply('WRONGTYPE the name is in use as a semaphore with ' .. kind .. ' permits')
    elseif not kind and redis.call('ZSCORE', KEYS[5], 'latch') then
        return redis.error_reply('WRONGTYPE the name is in use as a latch')
    elseif not tonumber(available) then
        return redis.error_reply('WRONGTYPE what is stored under the name is no semaphore')
    end
    reclaim(KEYS[1], KEYS[3], ARGV[2])
    tidy(KEYS[3], KEYS[4])
    available = tonumber(redis.call('GET', KEYS[1]))
    taken = redis.call('ZCARD', KEYS[3])
else
    -- What is left of an earlier semaphore will be deleted. What belongs to a lock that is called like the key is refused.
    redis.call('ZCARD', KEYS[3])
end

