-- A batch on a node of a cluster. The locks are in different slots, so each command has one key, and
-- no key is declared. The first command of a request fails if its slot is elsewhere or on its way
-- there, before anything is written.
for i = 1, release_count do
    run(release, {KEYS[i]}, {ARGV[2 * i], '0', ARGV[2 * i + 1], ''})
end

if acquire_count > 0 then
    -- With pcall: the user may have no right to it.
    pcall(function() note_time(redis.call('TIME')) end)
end
local index, group = 1, 2 * release_count + 2
while index <= acquire_count do
    local count, lease, token_ttl, token_count = unpack(ARGV, group, group + 3)
    local newest = newest_token(token_count, token_ttl)
    for i = group + 4, group + 3 + count do
        local lock, token = KEYS[release_count + index], KEYS[first_token + index]
        -- While the slot of a free lock moves, EXISTS fails.
        local last = newest and redis.pcall('EXISTS', lock) == 0 and redis.pcall('GET', token)
        if type(last) == 'string' and is_recent(last) then
            replies[#replies + 1] = grant_free(lock, token, newest, ARGV[i], lease)
        else
            run(acquire, {lock, token}, {ARGV[i], lease, '1', token_ttl, '', token_count})
        end
        index = index + 1
    end
    group = group + 4 + count
end
return replies
