-- Makes sure that later tokens are greater than a given one.
--
-- Without the key, the last token may be as late as the clock, so that tokens begin again there.
-- Clients that know an earlier token, or propose one, go by the key alone: see token.lua and
-- `restore.rs`.
--
-- The lock is not among the keys: a request that needs one key only is carried out while its slot
-- moves to another node.
--
-- KEYS  1 the last token of the name, shared with Redisson's RFencedLock
-- ARGV  1 the token
--       2 time to live of the key in ms
-- Reply 1 if the token was raised, 0 if it was that great already
local stored = redis.call('GET', KEYS[1])
local last = stored and tonumber(stored) or 0
local raised = tonumber(ARGV[1])
if last >= raised then
    return 0
end
local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
if not goes_on(last) then
    raised = math.max(raised, micros)
end
store_token(KEYS[1], raised, stored, micros, ARGV[2])
return 1
