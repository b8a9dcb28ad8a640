-- Late requests, for the scripts that grant a hold with a count.
--
-- ARGV  5 id of the requested hold

-- Returns true if the request is for an older hold than the stored one, of the same client. Such a
-- request was delayed and must not take over the newer hold. Ids have the form `<client>:<number>`.
local function is_older_than(stored_id)
    local client, number = string.match(ARGV[5], '^(.+):(%d+)$')
    local holder, stored_number = string.match(stored_id, '^(.+):(%d+)$')
    return client and client == holder and tonumber(number) < tonumber(stored_number)
end

