-- For acquire_read.lua and acquire_write.lua: reads the state of the requested hold. `count` is the
-- hold count of the owner in this mode. `is_same_hold` is true if the requested hold is already
-- stored. `announced` is for how many ms what the requested hold replaces would still have lived,
-- or -2 if it replaces nothing: waiters were told that end. `found` and `place` are for
-- acquire_read.lua and acquire_write.lua to set: what they have found to be removed.
local count, mode = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'mode'))
if mode ~= 'read' and mode ~= 'write' and redis.call('EXISTS', KEYS[1]) == 1 then
    return redis.error_reply('WRONGTYPE the name is in use as an exclusive or fair lock')
end
local token, id = read_lease(KEYS[3])
-- A field without a lease belongs to a hold that has ended.
count = id and count
local is_same_hold = count and id == ARGV[5]
if count and not is_same_hold and is_older_than(id) then
    return {0, redis.call('PTTL', KEYS[3])}
end
local announced = count and not is_same_hold and ttl_of(KEYS[3]) or -2
local found, place

