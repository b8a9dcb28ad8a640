-- Writes the record of a client, and forgets some that have ended.
--
-- KEYS  1 the ids of all clients: a sorted set, in which all have the score 0
--       2 the record
-- ARGV  1 id of the client
--       2 record
--       3 its lifetime in ms
--       4 the prefix of the keys of records
--       5 for how many ms the ids are kept, longer than any lifetime
-- Reply 1

-- The records end by themselves, but not the ids of clients that are gone. Each client looks after
-- those that follow it, and the last one after the first ones. Before the first write: a user who
-- may not look adds no id either.
local others = redis.call('ZRANGEBYLEX', KEYS[1], '(' .. ARGV[1], '+', 'LIMIT', 0, 3)
if #others == 0 then
    others = redis.call('ZRANGEBYLEX', KEYS[1], '-', '(' .. ARGV[1], 'LIMIT', 0, 3)
end
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
redis.call('ZADD', KEYS[1], 0, ARGV[1])
-- Scripts are not rolled back. If the user has no right to set an expiry, the ids must not stay
-- without one.
local expiry = redis.pcall('PEXPIRE', KEYS[1], ARGV[5])
if expiry ~= 1 then
    redis.call('ZREM', KEYS[1], ARGV[1])
    return expiry
end
for _, other in ipairs(others) do
    -- With pcall: while the slot moves, a record may be at another node.
    if not is_moving() and redis.pcall('EXISTS', ARGV[4] .. other) == 0 then
        redis.call('ZREM', KEYS[1], other)
    end
end
return 1
