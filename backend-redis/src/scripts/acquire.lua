-- Acquires an exclusive lock: decides what happens between hold.lua, which reads the state, and
-- issue.lua and grant.lua, which store the hold.
--
-- A refusal is published, because the holder may have kept the hold for its next use: see `demand.rs`.
-- The channel is that of the releases, which has the rest of KEYS[2] behind another prefix, and
-- `:wanted`. Redisson does not listen to it.
--
-- KEYS  1 the lock: hash of owner to hold count, as in Redisson's RLock
--       2 the last fencing token of the name, shared with Redisson's RFencedLock
--       3 the id of the hold; for named owners only, whose field alone does not tell one hold from
--         the next
-- ARGV  1 owner
--       2 lease in ms
--       3 hold count to set
--       4 time to live of the token in ms
--       5 id of the hold, empty unless the owner is named
--       6 number of tokens to issue
--       7 channel; may be absent unless the owner is named
--       8 the least token that the grant may have; may be absent
-- Reply {1, token, micros}  acquired, with the first of the tokens, and with the server's time if
--                           they were issued now
--       {0, ms}             held by another owner, whose lease ends in that time; -1 if it has no
--                           end
--       {2}                 the count is above 1, and there is no hold to nest in
if not count and remaining ~= -2 then
    -- With pcall: the answer is the same, even if the user has no right to publish.
    redis.pcall('PUBLISH', 'redisson_lock__channel' .. KEYS[2]:sub(20) .. ':wanted', '2')
    return {0, remaining}
end
local token_count, least_token = tonumber(ARGV[6]), ARGV[8] and tonumber(ARGV[8])
