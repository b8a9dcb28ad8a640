-- Semaphores, in the layout of Redisson's RSemaphore and RPermitExpirableSemaphore: a counter of
-- the available permits and, for leased permits, a sorted set of the times at which they end.
-- A hash of our own has the holds: hold id to `<count>:<token>:<owner>`, and `kind` to `leased` or
-- `plain`. Needs now.lua.

-- The time that Redisson stores for a lease without an end.
local NEVER = 922337203685477

-- Returns the count, the token and the owner of a hold, or nil if there is no such hold.
local function stored_permits(holds, id)
    local entry = redis.call('HGET', holds, id)
    if not entry then
        return nil
    end
    local count, token, owner = string.match(entry, '^(%d+):(%d+):(.*)$')
    return tonumber(count), token, owner
end

-- The id of one permit of a hold: 16 bytes, like Redisson's ids. The first 12 identify the hold and
-- are computed once, the last 4 are the index of the permit.
local prefixes = {}
local function permit_id(id, index)
    if not prefixes[id] then
        local digits = string.sub(redis.sha1hex(id), 1, 24)
        prefixes[id] = string.gsub(digits, '%x%x', function(byte)
            return string.char(tonumber(byte, 16))
        end)
    end
    return prefixes[id] .. struct.pack('>I4', index)
end

-- Returns the ids of the permits of a hold, in lists of up to 1000: the stack of Lua is limited.
-- They are computed once, unless a request wants another count for the same hold.
local lists = {}
local function permit_lists(id, count)
    if not lists[id] or lists[id].count ~= count then
        lists[id] = {count = count}
        for first = 1, count, 1000 do
            local permits = {}
            for i = first, math.min(first + 999, count) do
                permits[i - first + 1] = permit_id(id, i)
            end
            table.insert(lists[id], permits)
        end
    end
    return lists[id]
end

-- When permits end. One command for several needs Redis 6.2, and a right of its own.
local function ends_of(leases, permits)
    local ends = #permits > 1 and redis.pcall('ZMSCORE', leases, unpack(permits))
    if not ends or ends.err then
        ends = {}
        for i, permit in ipairs(permits) do
            ends[i] = redis.call('ZSCORE', leases, permit)
        end
    end
    return ends
end

-- Returns true if no permit of the hold has ended.
local function is_live(leases, id, count)
    for _, permits in ipairs(permit_lists(id, count)) do
        local ends = ends_of(leases, permits)
        for i = 1, #permits do
            if not ends[i] or tonumber(ends[i]) <= now then
                return false
            end
        end
    end
    return true
end

-- The arguments of ZADD that give permits the same end.
local function with_end(permits, ends)
    local entries = {}
    for i, permit in ipairs(permits) do
        entries[2 * i - 1], entries[2 * i] = ends, permit
    end
    return entries
end

-- Extends the leases of a hold to `ends`. Does not shorten them.
local function extend_leases(leases, id, count, ends)
    for _, permits in ipairs(permit_lists(id, count)) do
        -- One command for several needs Redis 6.2.
        local reply = #permits > 1
            and redis.pcall('ZADD', leases, 'XX', 'GT', unpack(with_end(permits, ends)))
        if type(reply) ~= 'number' then
            for _, permit in ipairs(permits) do
                if tonumber(redis.call('ZSCORE', leases, permit)) < tonumber(ends) then
                    redis.call('ZADD', leases, ends, permit)
                end
            end
        end
    end
end

-- Publishes the number of available permits.
local function publish_available(channel, available)
    redis.pcall('PUBLISH', channel, math.max(available, 0))
end

-- Makes permits available again. Called after another write only: once a script has written, the
-- server lets its other writes go on although memory is full.
local function return_permits(counter, channel, count)
    if count > 0 and redis.call('EXISTS', counter) == 1 then
        publish_available(channel, redis.call('INCRBY', counter, count))
    end
end

-- Ends a hold and returns its permits. Returns true if the hold was live: one whose lease has ended
-- is not, but its permits are returned all the same.
local function end_hold(counter, leases, holds, channel, id)
    local count = stored_permits(holds, id)
    if not count then
        return false
    end
    local was_live = is_live(leases, id, count)
    redis.call('HDEL', holds, id)
    local removed = 0
    for _, permits in ipairs(permit_lists(id, count)) do
        removed = removed + redis.call('ZREM', leases, unpack(permits))
    end
    return_permits(counter, channel, removed)
    return was_live
end

-- Removes holds that expired without having been released, once there are many of them.
local function prune_holds(leases, holds)
    if redis.call('HLEN', holds) <= 2 * redis.call('ZCARD', leases) + 8 then
        return
    end
    local fields = redis.call('HKEYS', holds)
    for _, id in ipairs(fields) do
        if id ~= 'kind' and not redis.call('ZSCORE', leases, permit_id(id, 1)) then
            redis.call('HDEL', holds, id)
        end
    end
end

-- Sets the time to live of all keys of a semaphore to that of its counter, which is at least `ttl`
-- ms. If the counter has no expiry, the other keys get none either.
local function extend_ttl(counter, leases, holds, ttl)
    local remaining = redis.call('PTTL', counter)
    for _, key in ipairs({counter, leases, holds}) do
        if remaining == -1 then
            redis.call('PERSIST', key)
        else
            redis.call('PEXPIRE', key, math.max(remaining, ttl))
        end
    end
end

