-- For renew.lua: renews the leases of the permits of a hold.
local function renew_permits(_, lease, id, ttl, counter, leases, holds)
    local count = stored_permits(holds, id)
    -- Checked with GET, which fails if the key has another type.
    if not count or not redis.call('GET', counter) or not is_live(leases, id, count) then
        return 0
    end
    -- This write works when memory is full. Coming first, it lets the other writes go on as well.
    extend_ttl(counter, leases, holds, ttl)
    extend_leases(leases, id, count, string.format('%.0f', now + lease))
    return 1
end

