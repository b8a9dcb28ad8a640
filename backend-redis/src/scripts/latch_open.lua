-- Opens a latch, whatever its count.
--
-- KEYS and ARGV as in latch.lua; the id is not used
-- Reply what was left, as text
if redis.call('EXISTS', KEYS[1]) == 1 then
    open()
end
return string.format('%.0f', left)
