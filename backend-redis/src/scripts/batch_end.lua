-- The end of batch.lua and batch_of_slots.lua: acquires the locks, and replies.
local index, group = 1, 2 * release_count + 2
while index <= acquire_count do
    local count, lease, token_ttl, token_count = unpack(ARGV, group, group + 3)
    local newest = newest_token(token_count, token_ttl)
    for i = group + 4, group + 3 + count do
        local lock, token = KEYS[release_count + index], KEYS[first_token + index]
        if newest and is_recent(last_token_if_free(index)) then
            replies[#replies + 1] = grant_free(lock, token, newest, ARGV[i], lease)
        else
            acquire_alone({lock, token}, {ARGV[i], lease, '1', token_ttl, '', token_count})
        end
        index = index + 1
    end
    group = group + 4 + count
end
return replies
