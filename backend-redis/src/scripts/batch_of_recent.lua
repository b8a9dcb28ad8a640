-- Releases exclusive locks of owners without a name, and acquires some that were released a moment
-- ago: see restore.rs. On a node of a cluster. The locks are in different slots, so each command has
-- one key, and no key is declared. A lock whose slot is elsewhere, or on its way there, is neither
-- released nor acquired: one that is free cannot be stored in such a slot.
--
-- No lock is released twice or acquired twice. One that is released may be acquired too, and is
-- released first.
--
-- ARGV  1 number of locks to release
--       then for each of them: lock, owner, channel
--       then for each lock to acquire: lock, last fencing token, lease in ms, the serialized hold,
--           the number to add to the last token
-- Reply for each release: the reply of HDEL
--       then for each acquisition: the last token, or 0 if the lock is stored without a later
--           one, or the error that RESTORE failed with
local call, replies, count = redis.pcall, {}, 0
local acquired = 2 + 3 * ARGV[1]
for i = 2, acquired - 1, 3 do
    local deleted = call('HDEL', ARGV[i], ARGV[i + 1])
    if type(deleted) == 'number' then
        redis.pcall('PUBLISH', ARGV[i + 2], '0')
    end
    count = count + 1
    replies[count] = deleted
end
for i = acquired, #ARGV, 5 do
    local reply = call('RESTORE', ARGV[i], ARGV[i + 2], ARGV[i + 3])
    if reply.ok then
        local issued = call('INCRBY', ARGV[i + 1], ARGV[i + 4])
        reply = type(issued) == 'number' and issued or 0
    end
    count = count + 1
    replies[count] = reply
end
return replies
