-- Acquires a read lock: decides what happens between hold_read_write.lua, which reads the state,
-- and grant_read_write.lua, which stores the hold.
--
-- KEYS  1 the lock: hash of mode and counts
--       2 the last fencing token
--       3 the lease of the hold: its token and id
--       4 the waiting writers that block new readers, and until when
--       5 the lease of the write hold that this hold is to be inside; may be absent
-- ARGV  1 field
--       2 lease in ms
--       3 hold count to set
--       4 time to live of the token in ms
--       5 id of the hold
--       6 field of the write hold that this hold is to be inside, or empty
--       7 id of that write hold, or empty
--       8 channel
--       9 the prefix of a field in its lease keys
-- Reply as in acquire.lua
if not count then
    if mode == 'write' then
        found = survey_holds()
        mode = found.mode
    end
    local within = mode == 'write' and KEYS[5] and redis.call('HEXISTS', KEYS[1], ARGV[6]) == 1
    if within then
        local _, writer = read_lease(KEYS[5])
        within = writer == ARGV[7]
    end
    if mode == 'write' and not within then
        remove_ended(found)
        return {0, reply_ms(found.writer)}
    end
    local waiting = not within and ARGV[3] == '1'
        and redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2]
    if waiting and tonumber(waiting) > now then
        if found then
            remove_ended(found)
        end
        return {0, waiting - now}
    end
    mode = mode or 'read'
end
