-- Acquires a fair lock, or a place in its queue: decides what happens between queue.lua and
-- hold.lua, which read the state, and issue.lua, leave_fair.lua and grant.lua, which store the
-- hold.
--
-- KEYS and ARGV 1 to 5 and the reply are those of acquire.lua. In addition:
-- KEYS  4 the queue
--       5 when its places expire
--       6 the lock that the queue belongs to: by Redisson's rules, `x` and `{x}` have the same
--         queue
--       7 by waiter, the last request that may be granted later, see grant_directly.lua: its number,
--         when its place expires, and for how many ms it was kept
-- ARGV  6 for how many ms the place is kept without another request, or 0 for no place
--       7 channel, without the owner that is notified
--       8 number of the request, or empty if it may not be granted later
local head, kept = queue_head(KEYS[4], KEYS[5])
local is_held = not count and remaining ~= -2
if is_held or not count and ARGV[3] == '1' and head and head ~= ARGV[1] then
    local lock = head and redis.call('GET', KEYS[6])
    if lock and lock ~= KEYS[1] then
        return redis.error_reply(
            'WRONGTYPE the lock `' .. lock .. '`, which has the same queue, has waiters'
        )
    end
    local function take_place()
        local score = tonumber(redis.call('ZSCORE', KEYS[5], ARGV[1]) or 0)
        local position = redis.call('LPOS', KEYS[4], ARGV[1])
        local kept_until = now + ARGV[6]
        -- The first write: if memory is full, it fails.
        redis.call('ZADD', KEYS[5], string.format('%.0f', kept_until), ARGV[1])
        if position and score <= now then
            redis.call('LREM', KEYS[4], 0, ARGV[1])
            position = nil
        end
        position = position or redis.call('RPUSH', KEYS[4], ARGV[1]) - 1
        local _, _, expired = queue_head(KEYS[4], KEYS[5])
        remove_first(KEYS[4], KEYS[5], expired, KEYS[7])
        position = position - expired
        -- A Redisson waiter that enters subtracts its own waiting time, 5 minutes by default, from
        -- the places of all waiters behind it. So a place behind a Redisson waiter is counted from
        -- the expiry of that one, but by no more than 5 minutes for each waiter ahead.
        local ahead = position > 0
            and redis.call('ZSCORE', KEYS[5], redis.call('LINDEX', KEYS[4], position - 1))
        if ahead and tonumber(ahead) > kept_until then
            kept_until = math.min(ahead, now + (position + 1) * 300000) + ARGV[6]
            redis.call('ZADD', KEYS[5], string.format('%.0f', kept_until), ARGV[1])
        end
        -- The queue expires an hour after its last place.
        local last = redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2]
        local ttl = string.format('%.0f', last - now + 3600000)
        redis.call('PEXPIRE', KEYS[4], ttl)
        redis.call('PEXPIRE', KEYS[5], ttl)
        redis.call('SET', KEYS[6], KEYS[1], 'PX', string.format('%.0f', last - now))
        if ARGV[8] == '' then
            redis.call('HDEL', KEYS[7], ARGV[1])
        else
            local until_ms = string.format('%.0f', now + ARGV[6])
            redis.call('HSET', KEYS[7], ARGV[1], table.concat({ARGV[8], until_ms, ARGV[6]}, ':'))
            redis.call('PEXPIRE', KEYS[7], ttl)
        end
    end
    local ok, failure = true
    if ARGV[6] ~= '0' then
        ok, failure = pcall(take_place)
    end
    if not ok then
        -- Scripts are not rolled back. If the user lacks a right, no place must stay without an
        -- expiry. Nor must anything of an earlier place: the client gives it up, but a release
        -- removes nothing of a place that is gone.
        leave_queue(KEYS[4], KEYS[5], ARGV[1])
        redis.pcall('HDEL', KEYS[7], ARGV[1])
        pcall(next_in_line, KEYS)
        error(failure, 0)
    end
    if is_held then
        -- As acquire.lua does.
        redis.pcall('PUBLISH', 'redisson_lock__channel' .. KEYS[2]:sub(20) .. ':wanted', '2')
    end
    return {0, is_held and remaining or kept}
end
local token_count, least_token = 1, nil
