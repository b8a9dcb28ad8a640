-- Adds a waiter to the queue of a condition, or keeps the place that it has.
--
-- KEYS are those of condition.lua.
-- ARGV  1 waiter
--       2 for how many ms the place is kept
if not is_queued(ARGV[1]) then
    local has_expired = redis.call('ZSCORE', KEYS[2], ARGV[1])
    -- The first write: if memory is full, it fails.
    redis.call('RPUSH', KEYS[1], ARGV[1])
    -- An expired place may still be in the list. The new place is at the end.
    if has_expired then
        leave_queue(KEYS[1], KEYS[2], ARGV[1])
        redis.call('RPUSH', KEYS[1], ARGV[1])
    end
end
-- Scripts are not rolled back. If the user lacks a right, no place must stay without an expiry.
local ok, failure = pcall(keep_place, ARGV[1], ARGV[2])
if not ok then
    leave_queue(KEYS[1], KEYS[2], ARGV[1])
    error(failure, 0)
end
return 1
