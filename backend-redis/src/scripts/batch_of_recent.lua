-- Releases exclusive locks of owners without a name, and acquires some that were released a moment
-- ago: see restore.rs. On a node of a cluster. The locks are in different slots, so each command has
-- one key, and no key is declared. A lock whose slot is elsewhere, or on its way there, is neither
-- released nor acquired: one that is free cannot be stored in such a slot.
--
-- No lock is released twice or acquired twice. One that is released may be acquired too, and is
-- released first. When memory is full, the server refuses commands that need memory until the
-- script has written. So an acquisition that shares a batch with a release is granted even then.
--
-- ARGV  1 number of the batch, which begins the reply
--       2 number of locks to release
--       3 number of locks to acquire whose next token follows the last one. The last tokens of those
--           behind them are behind the clock, and raised
--       then for each lock to release: lock, owner, channel
--       then for each lock to acquire: lock, last fencing token, lease in ms, the serialized hold,
--           the number to add to the last token, and the least token that this is to result in
-- Reply the number of the batch
--       then for each release: the reply of HDEL
--       then for each acquisition: its last token, or 0 if the last one was lost, or the error of
--           the command that failed. Unless there is a token, nothing is stored
local call, replies, count = redis.pcall, {ARGV[1]}, 1
-- As in token.lua.
local PERIOD = 10000000000
local acquired = 4 + 3 * ARGV[2]
local raised = acquired + 6 * ARGV[3]
for i = 4, acquired - 1, 3 do
    local deleted = call('HDEL', ARGV[i], ARGV[i + 1])
    if type(deleted) == 'number' then
        redis.pcall('PUBLISH', ARGV[i + 2], '0')
    end
    count = count + 1
    replies[count] = deleted
end
for i = acquired, #ARGV, 6 do
    local reply = call('RESTORE', ARGV[i], ARGV[i + 2], ARGV[i + 3])
    if reply.ok then
        local least = tonumber(ARGV[i + 5])
        reply = call('INCRBY', ARGV[i + 1], ARGV[i + 4])
        if i >= raised and type(reply) == 'number' and reply < least
            and math.floor(reply / PERIOD) == math.floor(least / PERIOD) then
            reply = call('INCRBY', ARGV[i + 1], least - reply)
        end
        if type(reply) ~= 'number' then
            call('DEL', ARGV[i])
        elseif reply < least then
            call('DEL', ARGV[i])
            -- There was no token, so the new one has no expiry.
            if reply == tonumber(ARGV[i + 4]) then
                call('PEXPIRE', ARGV[i + 1], '86400000')
            end
            reply = 0
        end
    end
    count = count + 1
    replies[count] = reply
end
return replies
