-- Releases a hold of a fair lock, lowers its count, or gives up a place in the queue. A lock that is
-- free then is granted to the first in the queue, if that is possible: see grant_directly.lua. A
-- full release uses only commands that work when memory is full, or that may fail.
--
-- KEYS  those of acquire_fair.lua, with the lock in the place of the token if nothing is to be
--       granted
-- ARGV  1 owner
--       2 hold count to set
--       3 channel, without the owner that is notified
--       4 id of the hold, empty unless the owner is named
--       5 time to live of a token in ms
-- Reply 1 released, 2 still held, 0 there is no such hold

-- Returns true if the queue could be read, the first waiter in it, and the number of expired places
-- before it. On a cluster, a queue that is at another node cannot be read while its slot moves away
-- from here, and it seems to be empty while the slot moves to here.
local function read_queue()
    local ok, head, _, expired = pcall(queue_head, KEYS[4], KEYS[5])
    if not ok or not head and is_moving() then
        return false
    end
    return true, head, expired
end

-- For a queue that could not be read: the waiters have to look for themselves. Those of Redisson
-- hear only what is sent to each of them.
local function wake_all()
    local first = redis.pcall('LINDEX', KEYS[4], 0)
    if type(first) == 'string' then
        redis.pcall('PUBLISH', ARGV[3] .. ':' .. first, '0')
    end
    redis.pcall('PUBLISH', ARGV[3], '0')
end

local function grant_or_wake(head, may_be_held)
    if not head then
        return
    end
    -- With pcall: whatever happens, the release has to be told.
    local args = {head, ARGV[3], '', ARGV[5], may_be_held}
    local ok, is_granted = pcall(grant_directly, KEYS, args)
    if not ok or not is_granted then
        redis.pcall('PUBLISH', ARGV[3] .. ':' .. head, '0')
    end
end

local count, mode = unpack(redis.call('HMGET', KEYS[1], ARGV[1], 'mode'))
if mode == 'read' or mode == 'write' then
    count = false
end
if not count or ARGV[4] ~= '' and redis.call('GET', KEYS[3]) ~= ARGV[4] then
    if not count then
        -- With pcall: see below, and the queue may be gone with its last place. Also if the waiter
        -- has no place: Redisson removes those that have expired, but not the numbers.
        redis.pcall('HDEL', KEYS[7], ARGV[1])
    end
    if not count and leave_queue(KEYS[4], KEYS[5], ARGV[1]) then
        local is_read, head, expired = read_queue()
        if is_read then
            pcall(remove_first, KEYS[4], KEYS[5], expired, KEYS[7])
        else
            wake_all()
        end
        if head then
            grant_or_wake(head, '1')
        elseif not is_moving() then
            redis.pcall('DEL', KEYS[6])
            redis.pcall('DEL', KEYS[7])
        end
    end
    return 0
end
if ARGV[2] ~= '0' then
    if count ~= ARGV[2] then
        redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    end
    return 2
end
-- Before the first write: a queue of the wrong type must not stop a release halfway.
local is_read, head, expired = read_queue()
redis.call('DEL', KEYS[1])
if ARGV[4] ~= '' then
    redis.call('DEL', KEYS[3])
end
if not is_read then
    wake_all()
    return 1
end
pcall(remove_first, KEYS[4], KEYS[5], expired, KEYS[7])
grant_or_wake(head)
-- Also wakes the waiters that take the lock without queueing. Those in the queue listen to the
-- channel too, for the ends of holds that nobody queued for, and ignore this message: the first one
-- has been told. To Redisson, it is the number 0 as well.
redis.pcall('PUBLISH', ARGV[3], '00')
return 1
