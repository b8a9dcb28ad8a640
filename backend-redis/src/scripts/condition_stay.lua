-- Keeps the place of a waiter, if it has one.
--
-- KEYS as in condition.lua
-- ARGV  1 waiter  2 for how many ms its place is kept
-- Reply 1 if it has one still, else 0
if not is_in(ARGV[1]) then
    return 0
end
-- A write that is allowed when memory is full comes first, so that the others are; and it leaves the queue its expiry, whatever the user
-- has no right for.
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
keep(ARGV[1], ARGV[2])
return 1
