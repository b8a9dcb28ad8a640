-- Reads the count of a latch.
--
-- KEYS and ARGV are those of latch.lua; the id is not used.
-- Reply the count, as text
return string.format('%.0f', count)
