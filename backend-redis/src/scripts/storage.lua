-- Reports which keys of a name there are. Needs now.lua and exists.lua. Writes nothing.
--
-- KEYS  1 the lock, of any kind
--       2 and others that the name may have
-- ARGV  1 the prefix of a field of a read-write lock in its lease keys
--       2 the rest of such a key, without the number of the hold
-- Reply {{the number of the key in KEYS, or 0; the key; its type; its PTTL; a number or ``}, ...}
--       where the number is that in a text, or how many entries a list has, or how many of a sorted
--       set have a score that is later than now
local found = {}

-- The most lease keys that are looked for.
local MANY = 1000

-- The reply to a command, or nil if the user may not run it.
local function ask(...)
    local reply = redis.pcall(...)
    if type(reply) ~= 'table' or not reply.err then
        return reply
    end
end

local function number_in(key, kind)
    if kind == 'string' then
        local text = ask('GET', key)
        return type(text) == 'string' and string.find(text, '^%d+$') and text
    elseif kind == 'list' then
        return ask('LLEN', key)
    elseif kind == 'zset' then
        return ask('ZCOUNT', key, string.format('(%.0f', now), '+inf')
    end
end

local function look_at(at, key)
    if exists(key) then
        local kind = redis.call('TYPE', key).ok
        local number = number_in(key, kind)
        table.insert(found, {at, key, kind, redis.call('PTTL', key), tostring(number or '')})
        return kind
    end
end

for at, key in ipairs(KEYS) do
    local kind = look_at(at, key)
    local mode = at == 1 and kind == 'hash' and redis.call('HGET', key, 'mode')
    if mode == 'read' or mode == 'write' then
        local looked = 0
        for _, field in ipairs(redis.call('HKEYS', key)) do
            local holds = field ~= 'mode' and tonumber(redis.call('HGET', key, field)) or 0
            for hold = 1, math.min(holds, MANY - looked) do
                look_at(0, ARGV[1] .. field .. ARGV[2] .. hold)
                looked = looked + 1
            end
        end
    end
end
return found
