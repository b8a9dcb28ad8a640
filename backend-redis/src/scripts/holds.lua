-- The holds of a read-write lock, as Redisson's RReadWriteLock has them: a hash of `mode` to `read` or `write`, and of each
-- hold's field to its count. The field of a reader is its owner, that of a writer ends with `:write`.
--
-- ARGV  the last one: what stands before a field in the names of its lease keys

-- The token and the id of the hold that a lease key belongs to; nothing if the lease is over, or is not one of ours.
local function hold_of(lease)
    return string.match(redis.call('GET', lease) or '', '^(%d+):(.*)$')
end

local function is_writer(field)
    return string.sub(field, -6) == ':write'
end

-- As PTTL: -2 if there is nothing. What has no end sorts last.
local function left(key)
    local ms = redis.call('PTTL', key)
    return ms == -1 and math.huge or ms
end

-- The key of a lease. Ours have one, Redisson's readers one for each time that they have entered.
local function lease_of(field, entry)
    return ARGV[#ARGV] .. field .. ':rwlock_timeout:' .. entry
end

-- How many leases a hold may have. Nobody enters more often than that.
local function entries(count)
    return math.min(tonumber(count) or 1, 10000)
end

-- For how many ms a hold lives still; -2 if it is over.
local function life(field, count)
    if is_writer(field) and string.sub(field, -15) ~= ':lockcore:write' then
        -- Redisson's writers have no lease of their own: theirs is that of the lock.
        return left(KEYS[1])
    end
    local ms = -2
    for entry = 1, entries(count) do
        ms = math.max(ms, left(lease_of(field, entry)))
    end
    return ms
end

-- Looks at every hold: how the lock is held by those who live, for how many ms the writer and the last of all live still, who
-- they are, and whose holds are over.
local function survey()
    local found = {last = -2, writer = -2, live = {}, over = {}}
    local fields = redis.call('HGETALL', KEYS[1])
    for i = 1, #fields, 2 do
        local field = fields[i]
        local ms = field ~= 'mode' and life(field, fields[i + 1])
        if ms == -2 then
            table.insert(found.over, field)
        elseif ms then
            found.last = math.max(found.last, ms)
            table.insert(found.live, {field, fields[i + 1]})
            if is_writer(field) then
                found.mode, found.writer = 'write', ms
            else
                found.mode = found.mode or 'read'
            end
        end
    end
    return found
end

-- Takes out those whose holds are over.
local function clear(found)
    for _, field in ipairs(found.over) do
        redis.call('HDEL', KEYS[1], field)
    end
    if #found.over > 0 and not found.mode then
        redis.call('DEL', KEYS[1])
    elseif #found.over > 0 then
        redis.call('HSET', KEYS[1], 'mode', found.mode)
    end
end

-- For replies: -1 says that there is no end.
local function reply_of(ms)
    return ms == math.huge and -1 or ms
end

