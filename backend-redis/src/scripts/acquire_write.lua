-- Acquires a write lock: decides what happens between hold_read_write.lua, which reads the state,
-- and grant_read_write.lua, which stores the hold.
--
-- KEYS  1 the lock: hash of mode and counts
--       2 the last fencing token
--       3 the lease of the hold: its token and id
--       4 the waiting writers that block new readers, and until when
-- ARGV  1 field
--       2 lease in ms
--       3 hold count to set
--       4 time to live of the token in ms
--       5 id of the hold
--       6 for how many ms to block new readers if refused, or 0 not to block them
--       7 id and owner, the entry of this writer among those that block readers
--       8 channel
--       9 the prefix of a field in its lease keys
-- Reply as in acquire.lua
if not count then
    found = survey_holds()
    if found.mode then
        if found.mode == 'read' and ARGV[3] == '1' and ARGV[6] ~= '0' then
            local ok, failure = pcall(function()
                -- The first write: if memory is full, it fails.
                redis.call('ZADD', KEYS[4], now + ARGV[6], ARGV[7])
                redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', now)
                local last = redis.call('ZRANGE', KEYS[4], -1, -1, 'WITHSCORES')[2]
                redis.call('PEXPIRE', KEYS[4], last - now)
            end)
            if not ok then
                -- Scripts are not rolled back. If the user lacks a right, no entry must stay
                -- without an expiry.
                redis.call('ZREM', KEYS[4], ARGV[7])
                error(failure, 0)
            end
        end
        remove_ended(found)
        return {0, reply_ms(found.last)}
    end
    mode = 'write'
end
-- A nested request without a hold does not touch the entry: grant_read_write.lua refuses it.
place = ARGV[3] == '1' and redis.call('ZSCORE', KEYS[4], ARGV[7])
if place then
    announced = math.max(announced, place - now)
end
