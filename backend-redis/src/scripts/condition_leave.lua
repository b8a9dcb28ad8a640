-- Takes a waiter out.
--
-- KEYS as in condition.lua
-- ARGV  1 waiter  2 whether a notification that it has got is for the next, 1 or 0  3 channel, without the waiter
-- Reply 1 if it was in still, else 0
local was_in = is_in(ARGV[1])
leave(KEYS[1], KEYS[2], ARGV[1])
if not was_in and ARGV[2] == '1' then
    notify(1, ARGV[3])
end
return was_in and 1 or 0
