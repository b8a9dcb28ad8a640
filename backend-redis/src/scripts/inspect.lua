-- Reports who holds a name, in whatever way.
--
-- KEYS  1 the lock, of any kind  2 the writers that keep new readers out  3 when leased permits end  4 when plain permits end
--       that were taken with a lease  5 the book of a semaphore  6 what is known of latches  7 who waits for a fair lock
--       8 until when
-- ARGV  1 what stands before fields in lease keys
-- Reply {`exclusive`, ms left, {owner, count, ...}, {owner that waits, ...}}
--       {`read_write`, ms left, {owner, mode, count, ...}, {id and owner of a writer that waits, ...}}
--       {`leased` or `plain`, ms left, {owner, count, ...}, permits left, permits in all, {id of a permit of others, ...}}
--       The ms are -1 if there is no end, or nobody.
if redis.call('TYPE', KEYS[1]).ok == 'string' then
    return inspect_permits()
end
local mode = redis.call('HGET', KEYS[1], 'mode')
local waiting = {}
-- Who may only use exclusive locks may not read queues.
local queue = redis.call('EXISTS', KEYS[7]) == 1 and redis.call('LRANGE', KEYS[7], 0, -1) or {}
for _, owner in ipairs(queue) do
    if tonumber(redis.call('ZSCORE', KEYS[8], owner) or 0) > now then
        table.insert(waiting, owner)
    end
end
if mode == 'read' or mode == 'write' or #waiting == 0 and redis.call('EXISTS', KEYS[1]) == 0 then
    return inspect_read_write()
end
return {'exclusive', redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1]), waiting}
