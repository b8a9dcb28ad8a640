-- Semaphores, as Redisson's RSemaphore and RPermitExpirableSemaphore have them: a number of permits that can be taken, and, for
-- those that are leased, a sorted set of when each permit ends. Needs now.lua. Our book says whose they are: a hash of hold id
-- to `<count>:<token>:<owner>`, and of `kind` to `leased` or `plain`.

-- Redisson's time for what never ends.
local NEVER = 922337203685477

local function permits_of(book, id)
    local entry = redis.call('HGET', book, id)
    if not entry then
        return nil
    end
    local count, token, owner = string.match(entry, '^(%d+):(%d+):(.*)$')
    return tonumber(count), token, owner
end

-- The ids of the permits of a hold: 16 bytes, as Redisson's. Twelve say whose they are, which is reckoned once, and four which.
local prefixes = {}
local function permit_id(id, index)
    if not prefixes[id] then
        local digits = string.sub(redis.sha1hex(id), 1, 24)
        prefixes[id] = string.gsub(digits, '%x%x', function(byte) return string.char(tonumber(byte, 16)) end)
    end
    return prefixes[id] .. struct.pack('>I4', index)
end

-- Whether none of the permits of a hold has ended.
local function is_live(times, id, count)
    for i = 1, count do
        local ends = redis.call('ZSCORE', times, permit_id(id, i))
        if not ends or tonumber(ends) <= now then
            return false
        end
    end
    return true
end

-- Whoever waits looks for as many as there are then.
local function publish(channel, permits)
    redis.pcall('PUBLISH', channel, math.max(permits, 0))
end

-- What was taken can be taken again. Only called after another write: what has begun to write goes on although memory is full.
local function give_back(number, channel, count)
    if count > 0 and redis.call('EXISTS', number) == 1 then
        publish(channel, redis.call('INCRBY', number, count))
    end
end

-- Takes back the permits whose leases have ended.
local function reclaim(number, times, channel)
    if redis.call('ZCOUNT', times, '-inf', now) > 0 then
        give_back(number, channel, redis.call('ZREMRANGEBYSCORE', times, '-inf', now))
    end
end

-- Ends a hold. Whether it was there still: one whose lease has ended is not, but its permits come back all the same.
local function give_up(number, times, book, channel, id)
    local count = permits_of(book, id)
    if not count then
        return false
    end
    local was_live = is_live(times, id, count)
    redis.call('HDEL', book, id)
    local removed = 0
    for i = 1, count do
        removed = removed + redis.call('ZREM', times, permit_id(id, i))
    end
    give_back(number, channel, removed)
    return was_live
end

-- Strikes holds off the book that ended long ago without having been released.
local function tidy(times, book)
    if redis.call('HLEN', book) <= 2 * redis.call('ZCARD', times) + 8 then
        return
    end
    local fields = redis.call('HKEYS', book)
    for _, id in ipairs(fields) do
        if id ~= 'kind' and not redis.call('ZSCORE', times, permit_id(id, 1)) then
            redis.call('HDEL', book, id)
        end
    end
end

-- Has what belongs to a semaphore stay as long as its number: for `ttl` ms at least, or for ever if that does.
local function keep(number, times, book, ttl)
    local left = redis.call('PTTL', number)
    for _, key in ipairs({number, times, book}) do
        if left == -1 then
            redis.call('PERSIST', key)
        else
            redis.call('PEXPIRE', key, math.max(left, ttl))
        end
    end
end

