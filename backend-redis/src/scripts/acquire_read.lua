-- Takes a read hold: decides between what hold_read_write.lua finds and grant_read_write.lua does.
--
-- KEYS  1 the lock: hash of mode and counts  2 the last fencing token  3 the writers that keep new readers out, and until when
--       4 the lease of the hold: its token and id  5 the lease of the write hold beside which it is to be, if it is to be
--       beside one
-- ARGV  1 field  2 lease in ms  3 hold count to reach  4 time to live of the token in ms  5 id of the hold
--       6 field and 7 id of the write hold beside which it is to be, or empty  8 what stands before fields in lease keys
-- Reply as in acquire.lua
if not count then
    local found = mode == 'write' and survey()
    if found then
        clear(found)
        mode = found.mode
    end
    local within = mode == 'write' and KEYS[5] and redis.call('HEXISTS', KEYS[1], ARGV[6]) == 1
    if within then
        local _, writer = hold_of(KEYS[5])
        within = writer == ARGV[7]
    end
    if mode == 'write' and not within then
        return {0, reply_of(found.writer)}
    end
    local waiting = not within and ARGV[3] == '1' and redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]
    if waiting and tonumber(waiting) > now then
        return {0, waiting - now}
    end
    mode = mode or 'read'
end
