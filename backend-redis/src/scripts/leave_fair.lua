-- For acquire_fair.lua: the owner leaves the queue, because it is granted the hold. Not before
-- issue.lua, which fails if memory is full.
local had_place = ARGV[3] == '1' and leave_queue(KEYS[4], KEYS[5], ARGV[1])
-- With pcall from here on: the place is gone already, and the lock has to be granted. On a cluster,
-- a key that is not there cannot be read while its slot moves.
if had_place then
    pcall(give_up_place, KEYS, ARGV[1], ARGV[6])
end
if had_place or ends_earlier then
    -- The next waiter was told the end of an earlier hold or of this place, and asks again before
    -- its own place expires. If this hold ends before that, the waiter has to be woken now: the end
    -- of a lease is not published.
    local ok, next, kept = pcall(next_in_line, KEYS)
    if ok and next and tonumber(ARGV[2]) < kept then
        redis.pcall('PUBLISH', ARGV[7] .. ':' .. next, '0')
    end
end
