-- In renew.lua: extends a hold of an exclusive or fair lock. The id is empty if the owner is not a named one.
local function renew_exclusive(owner, lease, id, _, lock, held)
    local count, mode = unpack(redis.call('HMGET', lock, owner, 'mode'))
    if not count or mode == 'read' or mode == 'write' or id ~= '' and redis.call('GET', held) ~= id then
        return 0
    end
    if redis.call('PTTL', lock) < tonumber(lease) then
        redis.call('PEXPIRE', lock, lease)
        if id ~= '' then
            redis.call('PEXPIRE', held, lease)
        end
    end
    return 1
end

