-- batch.lua for a node of a cluster: the locks are in different slots. Commands with several keys
-- cannot be used, so each request runs on its own. The keys are not declared. The first command of
-- a request fails if its slot is elsewhere or on its way there, before anything is written.
--
-- KEYS, ARGV and reply are those of batch.lua.
local replies = {}

-- Runs one request, so that its error is not that of the others.
local function run_request(request, ...)
    local _, reply = pcall(request, ...)
    if type(reply) == 'table' then
        reply = reply.err or reply[1] == 1 and reply[2] or reply
    end
    replies[#replies + 1] = reply
end

local release_count = tonumber(ARGV[1])
for i = 1, release_count do
    run_request(release, {KEYS[i]}, {ARGV[2 * i], '0', ARGV[2 * i + 1], ''})
end

local acquire_count = (#KEYS - release_count) / 2
local index, group = release_count + 1, 2 * release_count + 2
while index <= release_count + acquire_count do
    local count, lease, token_ttl, token_count = unpack(ARGV, group, group + 3)
    for i = group + 4, group + 3 + count do
        local keys = {KEYS[index], KEYS[index + acquire_count]}
        run_request(acquire, keys, {ARGV[i], lease, '1', token_ttl, '', token_count})
        index = index + 1
    end
    group = group + 4 + count
end
return replies
