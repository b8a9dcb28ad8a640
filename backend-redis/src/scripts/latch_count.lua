-- What is left to be counted down.
--
-- KEYS and ARGV as in latch.lua; the id is not used
-- Reply what is left, as text
return string.format('%.0f', left)
