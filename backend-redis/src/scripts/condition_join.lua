-- Queues a waiter, or keeps its place.
--
-- KEYS as in condition.lua
-- ARGV  1 waiter  2 for how many ms its place is kept
if not is_in(ARGV[1]) then
    -- A place that has lapsed is not at the end.
    if redis.call('ZSCORE', KEYS[2], ARGV[1]) then
        leave(KEYS[1], KEYS[2], ARGV[1])
    end
    redis.call('RPUSH', KEYS[1], ARGV[1])
end
-- Lua has no rollback: a user who lacks a right for it must not leave what has no expiry.
local kept, failure = pcall(keep, ARGV[1], ARGV[2])
if not kept then
    leave(KEYS[1], KEYS[2], ARGV[1])
    error(failure, 0)
end
return 1
