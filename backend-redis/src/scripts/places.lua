-- For acquire_fair.lua and release_fair.lua. Needs queue.lua.

-- As Redisson does when a waiter is granted the hold: subtracts what its place, for which it had
-- asked for `time` ms, has added to the places counted from it.
local function subtract(expiries, time)
    if time ~= '0' then
        local later = string.format('(%.0f', now + 2 * time)
        for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', expiries, later, '+inf')) do
            redis.call('ZINCRBY', expiries, '-' .. time, waiter)
        end
    end
end

