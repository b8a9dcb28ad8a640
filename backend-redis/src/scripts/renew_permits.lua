-- In renew.lua: extends the leases of the permits of a hold.
local function renew_permits(_, lease, id, ttl, number, times, book)
    local count = permits_of(book, id)
    -- Asked with GET, so that something else under the name is an error.
    if not count or not redis.call('GET', number) or not is_live(times, id, count) then
        return 0
    end
    -- A write that is allowed when memory is full comes first, so that the others are.
    keep(number, times, book, ttl)
    local ends = now + lease
    for i = 1, count do
        local permit = permit_id(id, i)
        if tonumber(redis.call('ZSCORE', times, permit)) < ends then
            redis.call('ZADD', times, string.format('%.0f', ends), permit)
        end
    end
    return 1
end

