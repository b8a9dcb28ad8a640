-- Finds the names in use among the next keys of the server. Needs now.lua. Writes nothing.
--
-- A name may have several keys, and is reported with each. One of them is there for as long as the
-- name is in use, so that a walk finds it although the others come and go: the last token, or what
-- is kept of a semaphore or latch. A lock that only Redisson has used, or that has been held for
-- longer than a day, may have its hash or its queue only.
--
-- ARGV  1 the cursor of SCAN
--       2 about how many keys to look at
--       3 the prefix of the locks to report
-- Reply {the next cursor, {lock, ...}}, each lock without the prefix
local prefix = ARGV[3]
local found = {}

-- The reply to a command, or nil if it cannot be had of this key: the user may not read it, it has
-- another type, or it was left behind in a slot that the node does not serve.
local function ask(...)
    local reply = redis.pcall(...)
    local failure = type(reply) == 'table' and reply.err
    if not failure then
        return reply
    end
    local is_of_key = string.find(failure, 'WRONGTYPE', 1, true)
        or string.find(failure, 'non local key', 1, true)
        or string.find(failure, 'access', 1, true) and string.find(failure, 'key', 1, true)
    if not is_of_key then
        error(failure, 0)
    end
end

local function type_of(key)
    local reply = ask('TYPE', key)
    return reply and reply.ok
end

-- Returns true if the sorted set has a time that has not come yet.
local function has_later(key)
    return (ask('ZCOUNT', key, string.format('(%.0f', now), '+inf') or 0) > 0
end

local function is_number(text)
    return type(text) == 'string' and string.find(text, '^%-?%d+$') ~= nil
end

-- The rules of keys.rs, forwards.
local function is_tagged(lock)
    return string.find(lock, '{', 1, true) ~= nil
end

local function derived(kind, lock)
    return is_tagged(lock) and kind .. ':' .. lock or kind .. ':{' .. lock .. '}'
end

local function own(kind, lock)
    return is_tagged(lock) and kind .. '_tagged:' .. lock or derived(kind, lock)
end

local function suffixed(lock, suffix)
    return is_tagged(lock) and lock .. ':' .. suffix or '{' .. lock .. '}:' .. suffix
end

-- The same backwards: the locks that the part behind a kind may be of, if they are asked for.
local function locks_of(part)
    local inner = string.match(part, '^{([^{]*)}$')
    local locks = {}
    for _, lock in ipairs(inner and {inner, part} or is_tagged(part) and {part} or {}) do
        if string.sub(lock, 1, #prefix) == prefix then
            table.insert(locks, lock)
        end
    end
    return locks
end

-- The part of `key` behind a kind of our own, such that no other lock has this key.
local function own_lock(key, kind)
    local part = string.match(key, '^' .. kind .. '_tagged:(.*)$')
    if part then
        return is_tagged(part) and part
    end
    return string.match(key, '^' .. kind .. ':{([^{]*)}$')
end

-- Clients are called by a UUID, here and in Redisson, and their owners after them.
local function is_owner(field)
    return string.find(field, '^%x+%-%x+%-%x+%-%x+%-%x+:') ~= nil
end

-- Returns true if one of the fields is that of a reader or a writer.
local function has_holder(lock, count)
    if count > 1000 then
        return true
    end
    for _, field in ipairs(ask('HKEYS', lock) or {}) do
        if field ~= 'mode' and (is_owner(field)
            or (ask('EXISTS', suffixed(lock, field .. ':rwlock_timeout:1')) or 0) == 1) then
            return true
        end
    end
    return false
end

-- Returns true if the key is the hash of a lock that is held, and not one of another application.
local function is_held(lock)
    if type_of(lock) ~= 'hash' then
        return false
    end
    local count = ask('HLEN', lock) or 0
    local mode = ask('HGET', lock, 'mode')
    if mode == 'read' or mode == 'write' then
        return has_holder(lock, count)
    elseif count ~= 1 then
        return false
    end
    local field = (ask('HKEYS', lock) or {})[1]
    if not field or not is_owner(field) and ask('EXISTS', own('lockcore_hold', lock)) ~= 1 then
        return false
    end
    return is_number(ask('HGET', lock, field))
end

-- Returns true if a place in one of the queues of the lock has not lapsed.
local function is_awaited(lock)
    if has_later(own('lockcore_writer', lock)) then
        return true
    elseif not has_later(derived('redisson_lock_timeout', lock))
        or not ask('LINDEX', derived('redisson_lock_queue', lock), 0) then
        return false
    end
    -- `x` and `{x}` have the same queue. Redisson does not say whose it is.
    local owner = ask('GET', derived('lockcore_queue_lock', lock))
    return owner == lock or not owner and string.find(lock, '^{[^{]*}$') == nil
end

-- Returns true if permits are taken, or if their number was set: then it has no expiry.
local function is_semaphore(lock)
    local holds = own('lockcore_permits', lock)
    local kind = ask('HGET', holds, 'kind')
    if not kind or not is_number(ask('GET', lock)) then
        return false
    end
    local leases = kind == 'leased' and suffixed(lock, 'timeout')
        or own('lockcore_permits_timeout', lock)
    return ask('PTTL', lock) == -1 or has_later(leases)
end

-- Returns true if Redisson has taken permits that have a lease.
local function has_leased_permits(lock)
    return is_number(ask('GET', lock)) and has_later(suffixed(lock, 'timeout'))
end

-- Returns true if the latch is closed. A number without this mark may be anything.
local function is_latch(lock)
    if not ask('ZSCORE', own('lockcore_latch', lock), 'latch') then
        return false
    end
    local count = tonumber(ask('GET', lock) or nil)
    return count and count > 0 and ask('EXISTS', own('lockcore_permits', lock)) == 0
end

local function report_if(is_used, lock)
    if lock and string.sub(lock, 1, #prefix) == prefix and is_used(lock) then
        table.insert(found, string.sub(lock, #prefix + 1))
    end
end

local function is_in_use(lock)
    return is_held(lock) or is_awaited(lock)
end

local function look_at(key)
    local part = string.match(key, '^redisson_lock_token:(.*)$')
    if part then
        for _, lock in ipairs(locks_of(part)) do
            report_if(is_in_use, lock)
        end
        return
    end
    part = string.match(key, '^redisson_lock_queue:(.*)$')
    if part then
        for _, lock in ipairs(locks_of(part)) do
            report_if(is_awaited, lock)
        end
    elseif string.sub(key, 1, 9) == 'lockcore_' then
        report_if(is_awaited, own_lock(key, 'lockcore_writer'))
        report_if(is_semaphore, own_lock(key, 'lockcore_permits'))
        report_if(is_latch, own_lock(key, 'lockcore_latch'))
    elseif string.sub(key, 1, 22) == 'redisson_lock_timeout:'
        or string.sub(key, 1, 22) == 'redisson_unlock_latch:'
        or string.find(key, ':rwlock_timeout:', 1, true) then
        return
    else
        report_if(is_held, key)
        part = string.match(key, '^(.*):timeout$')
        for _, lock in ipairs(part and locks_of(part) or {}) do
            report_if(has_leased_permits, lock)
        end
    end
end

local page = redis.call('SCAN', ARGV[1], 'COUNT', ARGV[2])
for _, key in ipairs(page[2]) do
    look_at(key)
end
return {page[1], found}
