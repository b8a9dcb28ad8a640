-- Releases and acquires many exclusive locks of owners without a name: no lock twice to be released, nor twice to be acquired. One
-- that is released here may be acquired as well, which comes after it. `release` and `acquire` are release.lua and acquire.lua, as
-- functions of their KEYS and ARGV. What they do as a matter of course is done here for all at once, with as few commands as can be.
--
-- When memory is full the server lets a script go on that has written. So what is acquired here beside a release is not refused.
--
-- KEYS  the locks to be released; the locks to be acquired; the last fencing tokens of the latter
-- ARGV  1 how many are to be released; for each of them: owner, channel; then those to be acquired, in groups that want the same:
--       how many they are, lease in ms, time to live of the token in ms, how many tokens are wanted, the owner of each
-- Reply for each to be released, and then for each to be acquired: what its own script replies, or the text of its error. Instead
--       of `{1, token}` there is the token alone.
local answers = {}

-- Each fails for itself.
local function answer(request, ...)
    local known, reply = pcall(request, ...)
    if type(reply) == 'table' then
        reply = reply.err or reply[1] == 1 and reply[2] or reply
    end
    answers[#answers + 1] = reply
end

local released = tonumber(ARGV[1])
local ended, is_ended = {}, {}
for i = 1, released do
    local found = redis.pcall('HMGET', KEYS[i], ARGV[2 * i], 'mode')
    if found[1] and not found[2] then
        ended[#ended + 1] = KEYS[i]
        is_ended[i] = true
    end
end
-- A user may lack the right to one of them: then none is deleted, and each is looked at for itself.
local are_deleted = #ended > 0 and type(redis.pcall('DEL', unpack(ended))) == 'number'
for i = 1, released do
    local owner, channel = ARGV[2 * i], ARGV[2 * i + 1]
    if are_deleted and is_ended[i] then
        redis.pcall('PUBLISH', channel, '0')
        answers[i] = 1
    else
        answer(release, {KEYS[i]}, {owner, '0', channel, ''})
    end
end

local acquired = (#KEYS - released) / 2
local first_token = released + acquired
-- If all are free: their last tokens, and the time.
local function survey()
    if acquired > 0 and redis.call('EXISTS', unpack(KEYS, released + 1, first_token)) == 0 then
        local time = redis.call('TIME')
        return redis.call('MGET', unpack(KEYS, first_token + 1, #KEYS)), time[1] * 1000000 + time[2]
    end
end
-- Here as well, one that is not permitted is no matter of the others.
local known, last, micros = pcall(survey)
micros = known and micros
local function digits(number)
    return string.format('%.0f', number)
end
local now, hour = micros and digits(micros), micros and digits(micros - micros % 3600000000)

-- As in token.lua and grant.lua when the lock is free and has had a token within the hour. `newest` is the last of the new tokens.
local function take(lock, token, newest, owner, lease)
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
local number, first = 1, 2 * released + 2
while number <= acquired do
    local count, lease, remembered, wanted = unpack(ARGV, first, first + 3)
    local newest = micros and remembered - 86400000 <= 0 and digits(micros + wanted - 1)
    for i = first + 4, first + 3 + count do
        local lock, token, latest = KEYS[released + number], KEYS[first_token + number], newest and last[number]
        -- Numbers of so many digits are in the order of their texts.
        if latest and #latest == #now and latest < now and latest >= hour then
            answers[#answers + 1] = take(lock, token, newest, ARGV[i], lease)
        else
            answer(acquire, {lock, token}, {ARGV[i], lease, '1', remembered, '', wanted})
        end
        number = number + 1
    end
    first = first + 4 + count
end
return answers
