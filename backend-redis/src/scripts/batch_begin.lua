-- The beginning of batch.lua and batch_of_slots.lua, which release and acquire many exclusive locks
-- of owners without a name. No lock is released twice or acquired twice. One that is released may
-- be acquired too, and is released first.
--
-- `acquire` is acquire.lua, as a function of its KEYS and ARGV.
--
-- When memory is full, the server refuses commands that need memory until the script has written.
-- So an acquisition that shares a batch with a release is granted even then.
--
-- KEYS  the locks to release; the locks to acquire; the last fencing tokens of the latter
-- ARGV  1 number of locks to release
--       then for each of them: owner, channel
--       then the acquisitions, in groups with equal options: number of locks, lease in ms, time to
--           live of the token in ms, number of tokens to issue, the owner of each
-- Reply for each release: 1 released, 0 there is no such hold
--       then for each acquisition: the reply of its own script; `{1, token}` is shortened to the
--           token. In place of each: the text of its error
local replies = {}
local release_count = tonumber(ARGV[1])

-- The owner is unique to the hold, and its field is the only one of the lock. So HDEL ends this
-- hold and no other, and the lock is gone. The message is sent even if there was nothing to delete:
-- the release may be repeated because both its reply and its message were lost. With pcall, so that
-- the error of one request is not that of the others.
for i = 1, release_count do
    local deleted = redis.pcall('HDEL', KEYS[i], ARGV[2 * i])
    if type(deleted) == 'number' then
        redis.pcall('PUBLISH', ARGV[2 * i + 1], '0')
        replies[i] = deleted
    else
        replies[i] = deleted.err
    end
end

-- Acquires one lock on its own.
local function acquire_alone(...)
    local _, reply = pcall(acquire, ...)
    if type(reply) == 'table' then
        reply = reply.err or reply[1] == 1 and reply[2] or reply
    end
    replies[#replies + 1] = reply
end

local function digits(number)
    return string.format('%.0f', number)
end

-- The server's time in microseconds, once it is known, and its digits.
local micros, now
local function note_time(time)
    micros = time[1] * 1000000 + time[2]
    now = digits(micros)
end

-- If the time is known, returns the last of so many tokens that are issued now, unless the key has
-- to live longer than usual.
local function newest_token(token_count, token_ttl)
    return micros and token_ttl - 86400000 <= 0 and digits(micros + token_count - 1)
end

-- Returns true if `last` is a token before now, of the same period: see token.lua. Numbers with
-- equally many digits are ordered like their texts.
local function is_recent(last)
    return last and #last == #now and last < now and last:sub(1, 6) == now:sub(1, 6)
end

-- Does what token.lua and grant.lua do for a free lock that had a token in this period. `newest`
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

local acquire_count = (#KEYS - release_count) / 2
local first_token = release_count + acquire_count

