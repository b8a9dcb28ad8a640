-- The holds of a read-write lock, in the layout of Redisson's RReadWriteLock: a hash of `mode` to
-- `read` or `write`, and of the field of each hold to its count. The field of a reader is its
-- owner; the field of a writer ends with `:write`.
--
-- KEYS  1 the lock: that hash
-- ARGV  the last one: the prefix of a field in its lease keys

-- Returns the token and the id of the hold that a lease key belongs to, or nil if the lease has
-- ended or is not one of ours.
local function read_lease(lease)
    return string.match(redis.call('GET', lease) or '', '^(%d+):(.*)$')
end

local function is_writer(field)
    return string.sub(field, -6) == ':write'
end

-- Like PTTL, with math.huge for a key without an expiry, so that it compares as the longest.
-- Returns -2 if there is no such key.
local function ttl_of(key)
    local ms = redis.call('PTTL', key)
    return ms == -1 and math.huge or ms
end

-- The key of a lease. Our holds have one lease; Redisson's readers have one for each entry.
local function lease_key(field, entry)
    return ARGV[#ARGV] .. field .. ':rwlock_timeout:' .. entry
end

-- The number of leases that a hold may have. The cap protects the server from an absurd count.
local function lease_count(count)
    return math.min(tonumber(count) or 1, 10000)
end

-- For how many ms a hold still lives, or -2 if it has ended.
local function hold_ttl(field, count)
    if is_writer(field) and string.sub(field, -15) ~= ':lockcore:write' then
        -- Redisson's writers have no lease of their own. Theirs is that of the lock.
        return ttl_of(KEYS[1])
    end
    local ms = -2
    for entry = 1, lease_count(count) do
        ms = math.max(ms, ttl_of(lease_key(field, entry)))
    end
    if ms == -2 and is_moving() then
        -- Before the first write. See cluster_end.lua.
        error('TRYAGAIN the lease of a hold may be at the node that the slot comes from', 0)
    end
    return ms
end

-- Examines every hold but that of the field `except`, if there is one. Returns a table with
--   mode    `read` or `write`, if there are live holds
--   last    for how many ms the last live hold lives, else -2
--   writer  for how many ms the writer lives, else -2
--   live    the live holds, each as {field, count}
--   over    the fields of the holds that have ended
local function survey_holds(except)
    local found = {last = -2, writer = -2, live = {}, over = {}}
    local fields = redis.call('HGETALL', KEYS[1])
    for i = 1, #fields, 2 do
        local field = fields[i]
        local ms = field ~= 'mode' and field ~= except and hold_ttl(field, fields[i + 1])
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

-- Removes the holds that have ended, as found by survey_holds.
local function remove_ended(found)
    for _, field in ipairs(found.over) do
        redis.call('HDEL', KEYS[1], field)
    end
    if #found.over > 0 and not found.mode then
        redis.call('DEL', KEYS[1])
    elseif #found.over > 0 then
        redis.call('HSET', KEYS[1], 'mode', found.mode)
    end
end

-- Converts a duration for a reply, where -1 means that there is no end.
local function reply_ms(ms)
    return ms == math.huge and -1 or ms
end

