-- Notifies some of those who wait.
--
-- KEYS as in condition.lua
-- ARGV  1 how many  2 channel, without the waiter
-- Reply how many there were
return notify(tonumber(ARGV[1]), ARGV[2])
