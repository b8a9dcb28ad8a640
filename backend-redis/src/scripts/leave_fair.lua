-- For acquire_fair.lua: the owner leaves the queue, because it is granted the hold. Not before
-- issue.lua, which fails if memory is full.
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
    local next, kept, expired = queue_head(KEYS[4], KEYS[5])
    remove_first(KEYS[4], KEYS[5], expired)
    if not next then
        redis.call('DEL', KEYS[6])
    elseif tonumber(ARGV[2]) < kept then
        redis.pcall('PUBLISH', ARGV[7] .. ':' .. next, '0')
    end
end
