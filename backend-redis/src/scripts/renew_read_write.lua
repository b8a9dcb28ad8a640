-- For renew.lua: renews a read or write hold. The lock lives as long as its longest hold, so its
-- expiry is extended as well.
local function renew_read_write(field, lease, id, _, lock, hold_lease)
    local _, stored_id = read_lease(hold_lease)
    if stored_id ~= id or redis.call('HEXISTS', lock, field) == 0 then
        return 0
    end
    for _, key in ipairs({lock, hold_lease}) do
        if redis.call('PTTL', key) < tonumber(lease) then
            redis.call('PEXPIRE', key, lease)
        end
    end
    return 1
end

