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
keep(ARGV[1], ARGV[2])
return 1
