-- Extends any number of holds.
--
-- KEYS  for each hold: 2i-1 the lock  2i the id of the hold
-- ARGV  for each hold: 3i-2 owner  3i-1 lease in ms  3i id of the hold, empty if the owner is not a named one
-- Reply for each hold: 1 renewed, 0 there is no such hold, or the text of its error
local replies = {}
for i = 1, #KEYS / 2 do
    local held = redis.pcall('HEXISTS', KEYS[2 * i - 1], ARGV[3 * i - 2])
    local named = ARGV[3 * i] ~= ''
    if held == 1 and named then
        local id = redis.pcall('GET', KEYS[2 * i])
        if type(id) == 'table' then
            held = id
        elseif id ~= ARGV[3 * i] then
            held = 0
        end
    end
    if held == 1 and redis.call('PTTL', KEYS[2 * i - 1]) < tonumber(ARGV[3 * i - 1]) then
        held = redis.pcall('PEXPIRE', KEYS[2 * i - 1], ARGV[3 * i - 1])
        if held == 1 and named then
            redis.call('PEXPIRE', KEYS[2 * i], ARGV[3 * i - 1])
        end
    end
    replies[i] = type(held) == 'table' and held.err or held
end
return replies
