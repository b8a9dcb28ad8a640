-- Takes an exclusive hold: decides between what hold.lua finds and grant.lua does.
--
-- KEYS  1 the lock: hash of owner to hold count, as Redisson's RLock
--       2 the last fencing token of the name, shared with Redisson's RFencedLock
--       3 the id of the hold, for named owners only: their field alone does not tell one hold from the next
-- ARGV  1 owner  2 lease in ms  3 hold count to reach  4 time to live of the token in ms
--       5 id of the hold, empty if the owner is not a named one  6 how many tokens are wanted
-- Reply {1, token}  acquired; the first token, if several are wanted
--       {0, ms}     held by another owner for so long; -1 if without end
--       {2}         a count above 1 was asked for, and there is no hold to nest in
if not count and left ~= -2 then
    return {0, left}
end
local tokens = tonumber(ARGV[6])
