-- Renews any number of holds of all kinds. The renewal of each kind is a function in a file of its
-- own.
--
-- KEYS  for each hold in turn, the keys that its kind needs: without that of the id if the owner is
--       not named
-- ARGV  for each hold:
--       1 kind
--       2 owner, or field
--       3 lease in ms
--       4 id of the hold
--       5 for permits: the minimum time to live of the counter in ms
-- Reply for each hold: 1 renewed, 0 there is no such hold, or the text of its error
local kinds = {
    exclusive = {renew_exclusive, 2},
    read_write = {renew_read_write, 2},
    permits = {renew_permits, 3},
}
local replies = {}
local key = 1
for i = 1, #ARGV, 5 do
    local renew, key_count = unpack(kinds[ARGV[i]])
    if ARGV[i] == 'exclusive' and ARGV[i + 3] == '' then
        key_count = 1
    end
    local last = key + key_count - 1
    local ok, reply = pcall(
        renew, ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4], unpack(KEYS, key, last)
    )
    replies[#replies + 1] = ok and reply or type(reply) == 'table' and reply.err or reply
    key = last + 1
end
return replies
