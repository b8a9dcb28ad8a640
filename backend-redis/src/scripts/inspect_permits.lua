-- For inspect.lua: reports the holders of a semaphore, and the number of available permits.
local function inspect_permits()
    local available = tonumber(redis.call('GET', KEYS[1]))
    local kind = redis.call('HGET', KEYS[5], 'kind')
    if not kind and redis.call('ZSCORE', KEYS[6], 'latch') then
        return redis.error_reply('WRONGTYPE the name is in use as a latch')
    elseif not available then
        return redis.error_reply('WRONGTYPE the value stored under the name is not a lock')
    end
    -- A counter that Redisson created belongs to a semaphore with leases if there are any.
    kind = kind or redis.call('EXISTS', KEYS[3]) == 1 and 'leased' or 'plain'
    local leases = kind == 'leased' and KEYS[3] or KEYS[4]
    local total = available + redis.call('ZCARD', leases)
    local live, last = {}, nil
    local permits = redis.call(
        'ZRANGEBYSCORE', leases, string.format('(%.0f', now), '+inf', 'WITHSCORES'
    )
    for i = 1, #permits, 2 do
        live[permits[i]] = true
        last = tonumber(permits[i + 1])
    end
    local holds = {}
    for _, id in ipairs(redis.call('HKEYS', KEYS[5])) do
        local count, _, owner = stored_permits(KEYS[5], id)
        if count and is_live(leases, id, count) then
            table.insert(holds, owner)
            table.insert(holds, count)
            for i = 1, count do
                live[permit_id(id, i)] = nil
            end
        end
    end
    local others = {}
    for permit in pairs(live) do
        table.insert(others, permit)
    end
    local remaining = last and last < NEVER and last - now or -1
    return {kind, remaining, holds, total - #permits / 2, total, others}
end

