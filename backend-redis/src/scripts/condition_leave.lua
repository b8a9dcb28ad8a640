-- Removes a waiter from the queue of a condition.
--
-- KEYS are those of condition.lua.
-- ARGV  1 waiter
--       2 `1` to pass a notification that the waiter has received on to the next, else `0`
--       3 channel, without the waiter
-- Reply 1 if the waiter was still queued, else 0
local was_queued = is_queued(ARGV[1])
leave_queue(KEYS[1], KEYS[2], ARGV[1])
if not was_queued and ARGV[2] == '1' then
    notify(1, ARGV[3])
end
return was_queued and 1 or 0
