-- For force_release.lua: ends all holds of a read-write lock.
local function force_read_write()
    local was_held = survey_holds().mode
    local fields = redis.call('HGETALL', KEYS[1])
    local leases = {}
    for i = 1, #fields, 2 do
        for entry = 1, lease_count(fields[i + 1]) do
            local lease = lease_key(fields[i], entry)
            if redis.call('EXISTS', lease) == 1 then
                table.insert(leases, lease)
            end
        end
    end
    redis.call('DEL', KEYS[1])
    for _, lease in ipairs(leases) do
        redis.call('DEL', lease)
    end
    -- For Redisson: `1` wakes every sleeping waiter, `0` is kept for one that is about to sleep.
    redis.pcall('PUBLISH', ARGV[2], '1')
    redis.pcall('PUBLISH', ARGV[2], '0')
    return was_held and 1 or 0
end

