-- Acquires a fair lock, or a place in its queue: decides what happens between queue.lua and
-- hold.lua, which read the state, and grant.lua, which stores the hold.
--
-- KEYS and ARGV 1 to 5 and the reply are those of acquire.lua. In addition:
-- KEYS  4 the queue
--       5 when its places expire
-- ARGV  6 for how many ms the place is kept without another request, or 0 for no place
--       7 channel, without the owner that is notified
local head, kept = queue_head(KEYS[4], KEYS[5])
local is_held = not count and remaining ~= -2
if is_held or not count and ARGV[3] == '1' and head and head ~= ARGV[1] then
    local function take_place()
        local score = tonumber(redis.call('ZSCORE', KEYS[5], ARGV[1]) or 0)
        local position = redis.call('LPOS', KEYS[4], ARGV[1])
        if score <= now or not position then
            leave_queue(KEYS[4], KEYS[5], ARGV[1])
            position = redis.call('RPUSH', KEYS[4], ARGV[1]) - 1
        end
        -- A Redisson waiter that enters subtracts its own waiting time, 5 minutes by default, from
        -- the places of all waiters behind it. So a place behind a Redisson waiter is counted from
        -- the expiry of that one, but by no more than 5 minutes for each waiter ahead.
        local ahead = position > 0
            and redis.call('ZSCORE', KEYS[5], redis.call('LINDEX', KEYS[4], position - 1))
        local kept_until = now + ARGV[6]
        if ahead and tonumber(ahead) > kept_until then
            kept_until = math.min(ahead, now + (position + 1) * 300000) + ARGV[6]
        end
        redis.call('ZADD', KEYS[5], string.format('%.0f', kept_until), ARGV[1])
        -- The queue expires an hour after its last place.
        local last = redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2]
        local ttl = string.format('%.0f', last - now + 3600000)
        redis.call('PEXPIRE', KEYS[4], ttl)
        redis.call('PEXPIRE', KEYS[5], ttl)
    end
    local ok, failure = true
    if ARGV[6] ~= '0' then
        ok, failure = pcall(take_place)
    end
    if not ok then
        -- Scripts are not rolled back. If the user lacks a right, no place must stay without an
        -- expiry.
        leave_queue(KEYS[4], KEYS[5], ARGV[1])
        error(failure, 0)
    end
    return {0, is_held and remaining or kept}
end
-- A nested request without a hold does not touch the queue: grant.lua refuses it.
local had_place = ARGV[3] == '1' and leave_queue(KEYS[4], KEYS[5], ARGV[1])
if had_place and ARGV[6] ~= '0' then
    -- As Redisson does: subtracts what this place has added to the places counted from it.
    local later = now + 2 * ARGV[6]
    for _, waiter in ipairs(
        redis.call('ZRANGEBYSCORE', KEYS[5], string.format('(%.0f', later), '+inf')
    ) do
        redis.call('ZINCRBY', KEYS[5], '-' .. ARGV[6], waiter)
    end
end
if had_place or ends_earlier then
    -- The next waiter was told the end of an earlier hold or of this place, and asks again before
    -- its own place expires. If this hold ends before that, the waiter has to be woken now: the end
    -- of a lease is not published.
    local next, kept = queue_head(KEYS[4], KEYS[5])
    if next and tonumber(ARGV[2]) < kept then
        redis.pcall('PUBLISH', ARGV[7] .. ':' .. next, '0')
    end
end
local token_count = 1
