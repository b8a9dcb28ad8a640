-- For the scripts that store the last fencing token.

-- Returns true if tokens go on from `last`, and begin again at the clock otherwise. A number below
-- any clock is what INCRBY has made of a lost key (see `restore.rs`), or counted by Redisson.
local function goes_on(last)
    return last >= 1000000000000000
end

-- Stores `last` in `key`, which had `stored` or nothing, and keeps it for `ttl` ms. A token that is
-- ahead of the server's clock, which is at `micros`, is kept until that has come so far as well:
-- without the key, tokens begin again at the clock.
local function store_token(key, last, stored, micros, ttl)
    -- A key that Redisson's fenced lock created has no expiry, and Redisson relies on that.
    if stored and redis.call('PTTL', key) == -1 then
        redis.call('SET', key, last, 'KEEPTTL')
        return
    end
    local ahead = math.max(0, math.ceil((last - micros) / 1000))
    redis.call('SET', key, last, 'PX', string.format('%.0f', ttl + ahead))
end

