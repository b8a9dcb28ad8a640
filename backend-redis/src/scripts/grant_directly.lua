-- For release_fair.lua: grants a lock that is free to the first in its queue, if its last request
-- said how it would hear of that, and tells it. The hold ends when its place would have expired:
-- the waiter counts from its request. Not counted from the score, from which others may have
-- subtracted.
--
-- KEYS  those of acquire_fair.lua. If the second is the lock, nothing is granted
-- ARGV  1 the first in the queue
--       2 channel, without the owner that is notified
--       3 not used
--       4 time to live of the token in ms
--       5 '1' if the lock may not be free
-- Returns true if the lock was granted. May fail halfway, with the lock free, or granted and told.
local number, kept_until, time = string.match(
    KEYS[2] ~= KEYS[1] and redis.call('HGET', KEYS[7], ARGV[1]) or '', '^(%d+):(%d+):(%d+)$'
)
local kept = number and kept_until - now
-- A place for longer than was asked for: the clock was set back.
if not number or kept < 1 or kept > tonumber(time) or is_moving()
    or redis.call('GET', KEYS[6]) ~= KEYS[1]
    or ARGV[5] == '1' and redis.call('EXISTS', KEYS[1]) == 1 then
    return false
end
local token = issue_tokens(1, server_time)
redis.call('HSET', KEYS[1], ARGV[1], '1')
-- Scripts are not rolled back: see grant.lua. The time itself, because a duration would be counted
-- from the beginning of the script, which may be earlier than `now`.
if redis.pcall('PEXPIREAT', KEYS[1], kept_until) ~= 1 or redis.call('PTTL', KEYS[1]) < 1
    or not pcall(leave_queue, KEYS[4], KEYS[5], ARGV[1]) then
    redis.call('DEL', KEYS[1])
    return false
end
redis.pcall('PUBLISH', ARGV[2] .. ':' .. ARGV[1], string.format('%.0f:%s', token, number))
give_up_place(KEYS, ARGV[1], time)
local next, next_kept = next_in_line(KEYS)
if next and kept < next_kept and not redis.call('HGET', KEYS[7], next) then
    -- As leave_fair.lua does. Waiters whose requests have numbers look often enough.
    redis.pcall('PUBLISH', ARGV[2] .. ':' .. next, '0')
end
return true
