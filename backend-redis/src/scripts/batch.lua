-- A batch on a single server. The common cases are handled with few commands, for all requests at
-- once.
local deletable, is_deletable = {}, {}
for i = 1, release_count do
    local found = redis.pcall('HMGET', KEYS[i], ARGV[2 * i], 'mode')
    if found[1] and not found[2] then
        deletable[#deletable + 1] = KEYS[i]
        is_deletable[i] = true
    end
end
-- If the user has no right to one of the locks, DEL deletes none, and each is released on its own.
local are_deleted = #deletable > 0 and type(redis.pcall('DEL', unpack(deletable))) == 'number'
for i = 1, release_count do
    local owner, channel = ARGV[2 * i], ARGV[2 * i + 1]
    if are_deleted and is_deletable[i] then
        redis.pcall('PUBLISH', channel, '0')
        replies[i] = 1
    else
        run(release, {KEYS[i]}, {owner, '0', channel, ''})
    end
end

-- If all locks to acquire are free, returns their last tokens, and notes the time.
local function survey_free()
    if acquire_count > 0
        and redis.call('EXISTS', unpack(KEYS, release_count + 1, first_token)) == 0 then
        local time = redis.call('TIME')
        local last_tokens = redis.call('MGET', unpack(KEYS, first_token + 1, #KEYS))
        note_time(time)
        return last_tokens
    end
end
-- With pcall, for the same reason: one lock that the user has no right to does not fail the others.
local _, last_tokens = pcall(survey_free)
-- The last token of a lock to acquire that is free. Not called before the time is known.
local function last_token_if_free(index)
    return last_tokens[index]
end
