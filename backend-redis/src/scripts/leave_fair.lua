-- For acquire_fair.lua: the owner leaves the queue, because it is granted the hold. Not before
-- issue.lua, which fails if memory is full.
local had_place = ARGV[3] == '1' and leave_queue(KEYS[4], KEYS[5], ARGV[1])
if had_place then
    redis.call('HDEL', KEYS[7], ARGV[1])
    subtract(KEYS[4], KEYS[5], ARGV[6])
end
if had_place or ends_earlier then
    -- The next waiter was told the end of an earlier hold or of this place, and asks again before
    -- its own place expires. If this hold ends before that, the waiter has to be woken now: the end
    -- of a lease is not published.
    local next, kept, expired = queue_head(KEYS[4], KEYS[5])
    remove_first(KEYS[4], KEYS[5], expired, KEYS[7])
    if not next then
        -- One by one: in a slot that moves, a command with two keys fails if one is not there.
        redis.call('DEL', KEYS[6])
        redis.call('DEL', KEYS[7])
    elseif tonumber(ARGV[2]) < kept then
        redis.pcall('PUBLISH', ARGV[7] .. ':' .. next, '0')
    end
end
