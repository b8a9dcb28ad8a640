-- For renew.lua: renews a hold of an exclusive or fair lock. The id is empty unless the owner is
-- named.
local function renew_exclusive(owner, lease, id, _, lock, id_key)
    local count, mode = unpack(redis.call('HMGET', lock, owner, 'mode'))
    if not count or mode == 'read' or mode == 'write'
        or id ~= '' and redis.call('GET', id_key) ~= id then
        return 0
    end
    if redis.call('PTTL', lock) < tonumber(lease) then
        redis.call('PEXPIRE', lock, lease)
        if id ~= '' then
            redis.call('PEXPIRE', id_key, lease)
        end
    end
    return 1
end

