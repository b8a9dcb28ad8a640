-- Acquires an exclusive lock for an owner without a name, outside other holds. If the lock is free
-- and the proposed token will do, these five commands are all. Else `acquire`, which is acquire.lua
-- as a function of its KEYS and ARGV, asks for the time.
--
-- A proposal has to be greater than the last token, and must not be ahead of the server's clock
-- unless it is the least token that the caller demands: if the key is lost, tokens begin again at
-- the clock. The client sees to that. A client that is wrong does limited harm: a proposal counts
-- only if it has 16 digits, as the last token, and the same first six, so it is at most 2.8 hours
-- (10^10 microseconds) ahead of a token that was in order. When these six change, `acquire` gives
-- the key a new expiry: see token.lua.
--
-- KEYS  1 and 2 as in acquire.lua
-- ARGV  1 owner
--       2 lease in ms
--       3 the proposed token, or 0 to propose none
--       4 the last of the tokens to issue, if that was the first
--       5 time to live of the last token in ms; may be absent if it is a day
--       6 the least token that the grant may have; may be absent
-- Reply the proposed token, or the reply of acquire.lua
local first = ARGV[3]
if redis.call('EXISTS', KEYS[1]) == 0 then
    local last = redis.call('GET', KEYS[2])
    -- Numbers with equally many digits are ordered like their texts. Those of ours have 16.
    if last and #last == 16 and #first == 16 and last < first
        and last:sub(1, 6) == first:sub(1, 6) then
        -- The first write: if memory is full, it fails, and nothing has been stored.
        redis.call('SET', KEYS[2], ARGV[4], 'KEEPTTL')
        redis.call('HSET', KEYS[1], ARGV[1], '1')
        -- Scripts are not rolled back. If the user has no right to set an expiry, the lock must not
        -- stay without one.
        local expiry = redis.pcall('PEXPIRE', KEYS[1], ARGV[2])
        if expiry ~= 1 then
            redis.call('DEL', KEYS[1])
            return expiry
        end
        return first
    end
end
local token_count = string.format('%.0f', ARGV[4] - first + 1)
return acquire(KEYS, {ARGV[1], ARGV[2], '1', ARGV[5] or '86400000', '', token_count, '', ARGV[6]})
