-- For acquire.lua and acquire_fair.lua: reads the state of the lock. `remaining` is what remains
-- of the current lease in ms, or -2 if the lock is free. `count` is the requesting owner's hold
-- count. `is_same_hold` is true if the requested hold is already stored. `ends_earlier` is true if
-- the request takes over a hold that would have ended later: waiters were told that later end.
local remaining = redis.call('PTTL', KEYS[1])
local count, mode, is_same_hold, ends_earlier
if remaining ~= -2 then
    count, mode = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'mode'))
    if mode == 'read' or mode == 'write' then
        return redis.error_reply('WRONGTYPE the name is in use as a read-write lock')
    end
    local stored_id = count and ARGV[5] ~= '' and redis.call('GET', KEYS[3])
    is_same_hold = count and (ARGV[5] == '' or stored_id == ARGV[5])
    if count and stored_id and not is_same_hold and is_older_than(stored_id) then
        return {0, remaining}
    end
    ends_earlier = count and not is_same_hold and ARGV[3] == '1'
        and (remaining == -1 or remaining > tonumber(ARGV[2]))
end

