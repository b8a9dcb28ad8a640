-- For the scripts that grant an exclusive or fair hold: finds or issues the token, and refuses a
-- nested request without a hold. `least_token` is nil, or the bound of issue_tokens. When a hold is
-- new, this is the first write of the script. If memory is full, it fails, and nothing has been
-- stored.
if not is_same_hold and ARGV[3] ~= '1' then
    return {2}
end
local token, micros
if is_same_hold then
    -- The stored token is the last of those that were issued with this hold.
    local stored = redis.call('GET', KEYS[2])
    local last = stored and tonumber(stored)
    token = last and last - token_count + 1
end
if not token then
    token, micros = issue_tokens(token_count, nil, least_token)
end
