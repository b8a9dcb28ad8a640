-- Reports the records of clients, in the order of their ids.
--
-- KEYS  1 the ids of all clients
-- ARGV  1 where to begin, as in ZRANGEBYLEX
--       2 the number of clients
--       3 the prefix of the keys of records
-- Reply {the last id that was looked at, or the empty text if there are no more, {id, record, ...}}
local ids = redis.call('ZRANGEBYLEX', KEYS[1], ARGV[1], '+', 'LIMIT', 0, ARGV[2])
local records = {}
for _, id in ipairs(ids) do
    local record = redis.call('GET', ARGV[3] .. id)
    if record then
        table.insert(records, id)
        table.insert(records, record)
    elseif is_moving() then
        -- See cluster_end.lua.
        error('TRYAGAIN the record of a client may be at the node that the slot comes from', 0)
    end
end
return {#ids == tonumber(ARGV[2]) and ids[#ids] or '', records}
