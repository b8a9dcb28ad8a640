-- Reports the records of clients, in the order of their ids.
--
-- KEYS  1 the ids of all clients
-- ARGV  1 the last id that was looked at before, in hexadecimal, or the empty text
--       2 the number of clients
--       3 the prefix of the keys of records
-- Reply {the last id that was looked at, or the empty text if there are no more, {id, record, ...}}
local from = '-'
if ARGV[1] ~= '' then
    from = '(' .. string.gsub(ARGV[1], '..', function(byte)
        return string.char(tonumber(byte, 16))
    end)
end
local ids = redis.call('ZRANGEBYLEX', KEYS[1], from, '+', 'LIMIT', 0, ARGV[2])
local records = {}
for _, id in ipairs(ids) do
    local record = redis.pcall('GET', ARGV[3] .. id)
    if type(record) == 'table' then
        if not string.find(record.err, 'WRONGTYPE', 1, true) then
            return record
        end
        -- Somebody has put something else there. The other clients can be read nevertheless.
        record = ''
    end
    if record then
        table.insert(records, id)
        table.insert(records, record)
    elseif is_moving() then
        -- See cluster_end.lua.
        error('TRYAGAIN the record of a client may be at the node that the slot comes from', 0)
    end
end
return {#ids == tonumber(ARGV[2]) and ids[#ids] or '', records}
