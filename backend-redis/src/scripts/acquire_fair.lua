-- Takes a hold of a fair lock, or a place in its queue: decides between what queue.lua and hold.lua find and grant.lua does.
--
-- KEYS and ARGV 1 to 5, and the reply, as in acquire.lua; and
-- KEYS  4 the queue  5 its times
-- ARGV  6 for how many ms a place is kept unless it is asked for again; 0 if none is wanted
local head, kept = first(KEYS[4], KEYS[5])
local held = not count and left ~= -2
if held or not count and ARGV[3] == '1' and head and head ~= ARGV[1] then
    local function take_place()
        local score = tonumber(redis.call('ZSCORE', KEYS[5], ARGV[1]) or 0)
        local place = redis.call('LPOS', KEYS[4], ARGV[1])
        if score <= now or not place then
            leave(KEYS[4], KEYS[5], ARGV[1])
            place = redis.call('RPUSH', KEYS[4], ARGV[1]) - 1
        end
        -- Redisson's waiters take their own waiting time, five minutes by default, off everybody's behind them when they enter.
        -- Behind one of them a place is counted from his, but never by more than that for each that is ahead.
        local ahead = place > 0 and redis.call('ZSCORE', KEYS[5], redis.call('LINDEX', KEYS[4], place - 1))
        local kept_until = now + ARGV[6]
        if ahead and tonumber(ahead) > kept_until then
            kept_until = math.min(ahead, now + (place + 1) * 300000) + ARGV[6]
        end
        redis.call('ZADD', KEYS[5], string.format('%.0f', kept_until), ARGV[1])
        -- Nothing stays for ever: when the last place has lapsed, so have all.
        local last = redis.call('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')[2]
        local ms = string.format('%.0f', last - now + 3600000)
        redis.call('PEXPIRE', KEYS[4], ms)
        redis.call('PEXPIRE', KEYS[5], ms)
    end
    local taken, failure = true
    if ARGV[6] ~= '0' then
        taken, failure = pcall(take_place)
    end
    if not taken then
        -- Lua has no rollback: a user who lacks a right for it must not leave what has no expiry.
        leave(KEYS[4], KEYS[5], ARGV[1])
        error(failure, 0)
    end
    return {0, held and left or kept}
end
-- A nested request that finds no hold is granted nothing, and takes no place either.
if ARGV[3] == '1' and leave(KEYS[4], KEYS[5], ARGV[1]) and ARGV[6] ~= '0' then
    -- As they do: what this place has added to those that are counted from it is taken off again.
    local later = now + 2 * ARGV[6]
    for _, owner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[5], string.format('(%.0f', later), '+inf')) do
        redis.call('ZINCRBY', KEYS[5], '-' .. ARGV[6], owner)
    end
    -- Who is next was told of an earlier hold, or how long this place is kept. This hold may end before he asks again, of which there is
    -- no message.
    local next = tonumber(ARGV[2]) < tonumber(ARGV[6]) and first(KEYS[4], KEYS[5])
    if next then
        local channel = 'redisson_lock__channel' .. string.sub(KEYS[4], #'redisson_lock_queue' + 1)
        redis.pcall('PUBLISH', channel .. ':' .. next, '0')
    end
end
local tokens = 1
