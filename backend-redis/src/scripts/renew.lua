-- Extends any number of holds of all kinds: the renewals of each kind are in a file of its own.
--
-- KEYS  for each hold, one after the other, those that its kind needs
-- ARGV  for each hold: its kind  owner, or field  lease in ms  id of the hold  for permits: for how many ms their number is
--       kept at least
-- Reply for each hold: 1 renewed, 0 there is no such hold, or the text of its error
local kinds = {
    exclusive = {renew_exclusive, 2},
    read_write = {renew_read_write, 2},
    permits = {renew_permits, 3},
}
local replies = {}
local key = 1
for i = 1, #ARGV, 5 do
    local renew, keys = unpack(kinds[ARGV[i]])
    local last = key + keys - 1
    local known, reply = pcall(renew, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], unpack(KEYS, key, last))
    replies[#replies + 1] = known and reply or type(reply) == 'table' and reply.err or reply
    key = last + 1
end
return replies
