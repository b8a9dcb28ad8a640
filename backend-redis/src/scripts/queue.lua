-- The beginning of acquire_fair.lua and release_fair.lua: the queue of a fair lock, as Redisson's RFairLock has it.
--
-- KEYS  4 list of the owners that wait, the first of them first  5 sorted set of when their places lapse, in epoch ms
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- The first whose place has not lapsed, and for how many ms it is kept. Places without a time have lapsed.
local function first()
    while true do
        local owner = redis.call('LINDEX', KEYS[4], 0)
        if not owner then
            return nil
        end
        local kept = (tonumber(redis.call('ZSCORE', KEYS[5], owner) or 0)) - now
        if kept > 0 then
            return owner, kept
        end
        redis.call('LPOP', KEYS[4])
        redis.call('ZREM', KEYS[5], owner)
    end
end

-- Takes an owner out of the queue. Whether it was in.
local function leave(owner)
    redis.call('ZREM', KEYS[5], owner)
    return redis.call('LREM', KEYS[4], 0, owner) > 0
end

