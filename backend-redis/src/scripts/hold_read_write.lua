-- In acquire_read.lua and acquire_write.lua: what is there of the hold that is asked for. `count` is that of its owner in this
-- mode, and `same` says whether it is this very hold.
local count, mode = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'mode'))
if mode ~= 'read' and mode ~= 'write' and redis.call('EXISTS', KEYS[1]) == 1 then
    return redis.error_reply('WRONGTYPE the name is in use as an exclusive or fair lock')
end
local token, id = hold_of(KEYS[4])
-- What is in the hash without a lease is over.
count = id and count
local same = count and id == ARGV[5]
if count and not same and is_overtaken_by(id) then
    return {0, redis.call('PTTL', KEYS[4])}
end

