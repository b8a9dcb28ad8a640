-- In acquire.lua and acquire_fair.lua: what is there of the hold that is asked for. `count` is that of its owner, and `same` says
-- whether it is this very hold.
local count, mode = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'mode'))
if mode == 'read' or mode == 'write' then
    return redis.error_reply('WRONGTYPE the name is in use as a read-write lock')
end
local known = ARGV[5] ~= '' and redis.call('GET', KEYS[3])
local same = count and (ARGV[5] == '' or known == ARGV[5])
if count and known and not same and is_overtaken_by(known) then
    return {0, redis.call('PTTL', KEYS[1])}
end

