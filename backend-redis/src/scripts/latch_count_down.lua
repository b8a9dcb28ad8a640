-- Counts down by one, and opens the latch at zero.
--
-- KEYS and ARGV as in latch.lua
-- Reply what is left, as text
forget()
if not is_known('down') then
    remember('down')
    if left > 0 then
        left = redis.call('DECR', KEYS[1])
        if left == 0 then
            open()
        end
    end
end
return string.format('%.0f', left)
