-- Notifies the waiters that have waited longest.
--
-- KEYS are those of condition.lua.
-- ARGV  1 the maximum number of waiters to notify
--       2 channel, without the waiter
-- Reply the number of waiters that were notified
return notify(tonumber(ARGV[1]), ARGV[2])
