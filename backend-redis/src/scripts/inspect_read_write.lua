-- For inspect.lua: reports the holds of a read-write lock, and the writers that wait for it.
local function inspect_read_write()
    local found = survey_holds()
    local holds = {}
    for _, hold in ipairs(found.live) do
        local field, count = unpack(hold)
        local owner = is_writer(field)
            and string.gsub(string.sub(field, 1, -7), ':lockcore$', '') or field
        table.insert(holds, owner)
        table.insert(holds, is_writer(field) and 'write' or 'read')
        table.insert(holds, count)
    end
    local waiting = redis.call('ZRANGEBYSCORE', KEYS[2], string.format('(%.0f', now), '+inf')
    return {'read_write', reply_ms(found.last), holds, waiting}
end

