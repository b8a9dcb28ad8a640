-- Releases and acquires many exclusive locks of owners without a name. No lock is released twice or
-- acquired twice; one that is released may be acquired too, and is released first.
--
-- `release` and `acquire` are release.lua and acquire.lua, as functions of their KEYS and ARGV. The
-- common cases are handled here with fewer commands, for all requests at once.
--
-- When memory is full, the server refuses commands that need memory until the script has written.
-- So an acquisition that shares a batch with a release is granted even then.
--
-- KEYS  the locks to release; the locks to acquire; the last fencing tokens of the latter
-- ARGV  1 number of locks to release
--       then for each of them: owner, channel
--       then the acquisitions, in groups with equal options: number of locks, lease in ms, time to
--           live of the token in ms, number of tokens to issue, the owner of each
-- Reply for each release and then for each acquisition: the reply of its own script, or the text of
--       its error. `{1, token}` is shortened to the token.
local replies = {}

-- Runs one request on its own, so that its error is not that of the others.
local function run(request, ...)
    local _, reply = pcall(request, ...)
    if type(reply) == 'table' then
        reply = reply.err or reply[1] == 1 and reply[2] or reply
    end
    replies[#replies + 1] = reply
end

local release_count = tonumber(ARGV[1])
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

local acquire_count = (#KEYS - release_count) / 2
local first_token = release_count + acquire_count
-- If all locks to acquire are free, returns their last tokens and the time in microseconds.
local function survey_free()
    if acquire_count > 0
        and redis.call('EXISTS', unpack(KEYS, release_count + 1, first_token)) == 0 then
        local time = redis.call('TIME')
        return redis.call('MGET', unpack(KEYS, first_token + 1, #KEYS)),
            time[1] * 1000000 + time[2]
    end
end
-- With pcall, for the same reason: one lock that the user has no right to does not fail the others.
local ok, last_tokens, micros = pcall(survey_free)
micros = ok and micros
local function digits(number)
    return string.format('%.0f', number)
end
local now, hour = micros and digits(micros), micros and digits(micros - micros % 3600000000)

-- Does what token.lua and grant.lua do for a free lock that had a token within the hour. `newest`
-- is the last of the tokens that are issued.
local function grant_free(lock, token, newest, owner, lease)
    local reply = redis.pcall('SET', token, newest, 'KEEPTTL')
    if reply.ok then
        reply = redis.pcall('HSET', lock, owner, '1')
    end
    if reply == 1 then
        reply = redis.pcall('PEXPIRE', lock, lease)
        if reply == 1 then
            return micros
        end
        redis.call('DEL', lock)
    end
    return type(reply) == 'table' and reply.err or 'ERR the lock was not free'
end
local index, group = 1, 2 * release_count + 2
while index <= acquire_count do
    local count, lease, token_ttl, token_count = unpack(ARGV, group, group + 3)
    local newest = micros and token_ttl - 86400000 <= 0 and digits(micros + token_count - 1)
    for i = group + 4, group + 3 + count do
        local lock, token, last =
            KEYS[release_count + index], KEYS[first_token + index], newest and last_tokens[index]
        -- Numbers with equally many digits are ordered like their texts.
        if last and #last == #now and last < now and last >= hour then
            replies[#replies + 1] = grant_free(lock, token, newest, ARGV[i], lease)
        else
            run(acquire, {lock, token}, {ARGV[i], lease, '1', token_ttl, '', token_count})
        end
        index = index + 1
    end
    group = group + 4 + count
end
return replies
