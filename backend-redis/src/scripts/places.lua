-- For acquire_fair.lua and release_fair.lua. Needs queue.lua.

-- As Redisson does when a waiter is granted the hold: subtracts what its place, for which it had
-- asked for `time` ms, has added to the places counted from it. Among waiters of this backend,
-- places are not counted from each other: then the next one is kept for no longer than its time.
local function subtract(queue, expiries, time)
    local next = time ~= '0' and redis.call('LINDEX', queue, 0)
    local later = now + 2 * time
    if not next or tonumber(redis.call('ZSCORE', expiries, next) or 0) <= later then
        return
    end
    later = string.format('(%.0f', later)
    for _, waiter in ipairs(redis.call('ZRANGEBYSCORE', expiries, later, '+inf')) do
        redis.call('ZINCRBY', expiries, '-' .. time, waiter)
    end
end

-- For a waiter that has been granted the hold and has left the queue, after it had asked for a place
-- of `time` ms. The keys are those of acquire_fair.lua.
local function give_up_place(keys, waiter, time)
    redis.call('HDEL', keys[7], waiter)
    subtract(keys[4], keys[5], time)
end

-- Returns the next waiter, and for how many ms its place is kept. Removes the places that have
-- expired, and what belongs to the queue if nobody waits.
local function next_in_line(keys)
    local next, kept, expired = queue_head(keys[4], keys[5])
    remove_first(keys[4], keys[5], expired, keys[7])
    if not next then
        -- One by one: in a slot that moves, a command with two keys fails if one is not there.
        redis.call('DEL', keys[6])
        redis.call('DEL', keys[7])
    end
    return next, kept
end

