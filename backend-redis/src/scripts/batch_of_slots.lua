-- A batch on a node of a cluster. The locks are in different slots, so each command has one key,
-- and no key is declared. The first command of a request fails if its slot is elsewhere or on its
-- way there, before anything is written.
if acquire_count > 0 then
    -- With pcall: the user may have no right to it.
    pcall(function() note_time(redis.call('TIME')) end)
end
-- The last token of a lock to acquire that is free. While the slot of a free lock moves, EXISTS
-- fails.
local function last_token_if_free(index)
    local is_free = redis.pcall('EXISTS', KEYS[release_count + index]) == 0
    local last = is_free and redis.pcall('GET', KEYS[first_token + index])
    return type(last) == 'string' and last
end
