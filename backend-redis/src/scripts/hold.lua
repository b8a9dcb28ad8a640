-- In acquire.lua and acquire_fair.lua: what is there of the hold that is asked for. `count` is that of its owner, and `same` says
-- whether it is this very hold.
local count = redis.call('HGET', KEYS[1], ARGV[1])
local known = ARGV[5] ~= '' and redis.call('GET', KEYS[3])
local same = count and (ARGV[5] == '' or known == ARGV[5])
if count and known and not same then
    -- Ids are `<client>:<number>`: a request that a newer one of the same client has overtaken comes too late.
    local client, number = string.match(ARGV[5], '^(.+):(%d+)$')
    local holder, newer = string.match(known, '^(.+):(%d+)$')
    if client and client == holder and tonumber(number) < tonumber(newer) then
        return {0, redis.call('PTTL', KEYS[1])}
    end
end

