-- For renew.lua: renews the leases of the permits of a hold.
local function renew_permits(_, lease, id, ttl, counter, leases, holds)
    local count = stored_permits(holds, id)
    -- Checked with GET, which fails if the key has another type.
    if not count or not redis.call('GET', counter) or not is_live(leases, id, count) then
        return 0
    end
    -- This write works when memory is full. Coming first, it lets the other writes go on as well.
    extend_ttl(counter, leases, holds, ttl)
    local ends = now + lease
    for i = 1, count do
        local permit = permit_id(id, i)
        if tonumber(redis.call('ZSCORE', leases, permit)) < ends then
            redis.call('ZADD', leases, string.format('%.0f', ends), permit)
        end
    end
    return 1
end

