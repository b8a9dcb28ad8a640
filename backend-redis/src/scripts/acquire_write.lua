-- Takes a write hold: decides between what hold_read_write.lua finds and grant_read_write.lua does.
--
-- KEYS  1 the lock: hash of mode and counts  2 the last fencing token  3 the writers that keep new readers out, and until when
--       4 the lease of the hold: its token and id
-- ARGV  1 field  2 lease in ms  3 hold count to reach  4 time to live of the token in ms  5 id of the hold
--       6 for how many ms new readers are to be kept out, 0 if they are not  7 who keeps them out: id and owner
--       8 what stands before fields in lease keys
-- Reply as in acquire.lua
if not count then
    local found = survey()
    clear(found)
    if found.mode then
        if found.mode == 'read' and ARGV[3] == '1' and ARGV[6] ~= '0' then
            redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
            local kept, failure = pcall(function()
                redis.call('ZADD', KEYS[3], now + ARGV[6], ARGV[7])
                local last = redis.call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]
                redis.call('PEXPIRE', KEYS[3], last - now)
            end)
            if not kept then
                -- Lua has no rollback: a user who lacks a right for it must not leave what has no expiry.
                redis.call('ZREM', KEYS[3], ARGV[7])
                error(failure, 0)
            end
        end
        return {0, reply_of(found.last)}
    end
    mode = 'write'
end
-- Only what is there: a script that has begun to write would go on although memory is full.
if redis.call('ZSCORE', KEYS[3], ARGV[7]) then
    redis.call('ZREM', KEYS[3], ARGV[7])
end
