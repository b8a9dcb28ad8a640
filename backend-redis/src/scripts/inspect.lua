-- Reports who holds a name, in whatever way.
--
-- KEYS  1 the lock, of any kind  2 the writers that keep new readers out  3 when leased permits end  4 when plain permits end
--       that were taken with a lease  5 the book of a semaphore  6 what is known of latches
-- ARGV  1 what stands before fields in lease keys
-- Reply {`exclusive`, ms left, {owner, count, ...}}
--       {`read_write`, ms left, {owner, mode, count, ...}, {id and owner of a writer that waits, ...}}
--       {`leased` or `plain`, ms left, {owner, count, ...}, permits left, permits in all, {id of a permit of others, ...}}
--       The ms are -1 if there is no end, or nobody.
if redis.call('TYPE', KEYS[1]).ok == 'string' then
    return inspect_permits()
end
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode == 'read' or mode == 'write' or redis.call('EXISTS', KEYS[1]) == 0 then
    return inspect_read_write()
end
return {'exclusive', redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1])}
