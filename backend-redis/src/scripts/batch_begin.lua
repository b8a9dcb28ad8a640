-- The beginning of batch.lua and batch_of_slots.lua, which acquire many exclusive locks for owners
-- without a name. No lock is acquired twice.
--
-- `acquire` is acquire.lua, as a function of its KEYS and ARGV.
--
-- When memory is full, the server refuses commands that need memory until the script has written.
--
-- KEYS  the locks; their last fencing tokens
-- ARGV  the acquisitions, in groups with equal options: number of locks, lease in ms, time to live
--           of the token in ms, number of tokens to issue, the owner of each
-- Reply for each acquisition: the reply of its own script; `{1, token}` is shortened to the token.
--           In place of each: the text of its error
local replies = {}
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

local lock_count = #KEYS / 2

