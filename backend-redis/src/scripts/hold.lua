-- In acquire.lua and acquire_fair.lua: what is there of the hold that is asked for. `left` is what is left of the lease of whoever
-- holds the lock, -2 if it is free; `count` is that of the owner, and `same` says whether it is this very hold.
local left = redis.call('PTTL', KEYS[1])
local count, mode, same
if left ~= -2 then
    count, mode = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'mode'))
    if mode == 'read' or mode == 'write' then
        return redis.error_reply('WRONGTYPE the name is in use as a read-write lock')
    end
    local known = count and ARGV[5] ~= '' and redis.call('GET', KEYS[3])
    same = count and (ARGV[5] == '' or known == ARGV[5])
    if count and known and not same and is_overtaken_by(known) then
        return {0, left}
    end
end

