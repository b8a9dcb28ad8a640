-- Keeps the place of a waiter, if it still has one.
--
-- KEYS are those of condition.lua.
-- ARGV  1 waiter
--       2 for how many ms the place is kept
-- Reply 1 if the waiter still has its place, else 0
if not is_queued(ARGV[1]) then
    return 0
end
-- This write works when memory is full. Coming first, it lets the other writes go on as well. It
-- also leaves the queue with an expiry if the user has no right to the writes that follow.
redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), ARGV[2]))
keep_place(ARGV[1], ARGV[2])
return 1
