-- Reports the holders of a name, of any kind.
--
-- KEYS  1 the lock, of any kind
--       2 the waiting writers that block new readers
--       3 when leased permits end
--       4 when plain permits that were taken with a lease end
--       5 the holds of a semaphore
--       6 the state of a latch
--       7 the queue of a fair lock
--       8 when the places in it expire
-- ARGV  1 the prefix of a field in its lease keys
-- Reply {`exclusive`, ms, {owner, count, ...}, {waiting owner, ...}}
--       {`read_write`, ms, {owner, mode, count, ...}, {id and owner of a waiting writer, ...}}
--       {`leased` or `plain`, ms, {owner, count, ...}, available permits, total permits,
--           {id of a permit that is not ours, ...}}
--       where ms is what remains of the longest lease, or -1 if it has no end or there is none
if redis.call('TYPE', KEYS[1]).ok == 'string' then
    return inspect_permits()
end
local mode = redis.call('HGET', KEYS[1], 'mode')
local waiting = {}
-- Checked first: a user with rights for exclusive locks only may not read queues.
local queue = exists(KEYS[7]) and redis.call('LRANGE', KEYS[7], 0, -1) or {}
for _, owner in ipairs(queue) do
    if tonumber(redis.call('ZSCORE', KEYS[8], owner) or 0) > now then
        table.insert(waiting, owner)
    end
end
if mode == 'read' or mode == 'write' or #waiting == 0 and redis.call('EXISTS', KEYS[1]) == 0 then
    return inspect_read_write()
end
return {'exclusive', redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1]), waiting}
