-- A batch on a single server: looks at all locks to acquire at once. If they are free, returns
-- their last tokens, and notes the time.
local function survey_free()
    if acquire_count > 0
        and redis.call('EXISTS', unpack(KEYS, release_count + 1, first_token)) == 0 then
        local time = redis.call('TIME')
        local last_tokens = redis.call('MGET', unpack(KEYS, first_token + 1, #KEYS))
        note_time(time)
        return last_tokens
    end
end
-- With pcall: one lock that the user has no right to does not fail the others.
local _, last_tokens = pcall(survey_free)
-- The last token of a lock to acquire that is free. Not called before the time is known.
local function last_token_if_free(index)
    return last_tokens[index]
end
