-- Opens a latch, whatever its count.
--
-- KEYS and ARGV are those of latch.lua; the id is not used.
-- Reply the count before, as text
if redis.call('EXISTS', KEYS[1]) == 1 then
    open_latch()
end
return string.format('%.0f', count)
