-- In renew.lua: extends a read or write hold, and the lock with it, which is to live as long as the longest.
local function renew_read_write(field, lease, id, _, lock, held)
    local _, known = hold_of(held)
    if known ~= id or redis.call('HEXISTS', lock, field) == 0 then
        return 0
    end
    for _, key in ipairs({lock, held}) do
        if redis.call('PTTL', key) < tonumber(lease) then
            redis.call('PEXPIRE', key, lease)
        end
    end
    return 1
end

