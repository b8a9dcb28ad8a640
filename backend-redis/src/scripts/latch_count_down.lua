-- Lowers the count of a latch by one, and opens the latch at zero.
--
-- KEYS and ARGV are those of latch.lua.
-- Reply the count afterwards, as text
forget_expired()
if not is_remembered('down') then
    remember('down')
    if count > 0 then
        count = redis.call('DECR', KEYS[1])
        if count == 0 then
            open_latch()
        end
    end
end
return string.format('%.0f', count)
