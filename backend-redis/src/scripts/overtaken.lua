-- In the scripts that take a hold with a count: holds that one owner has one after the other.
--
-- ARGV  5 id of the hold that is asked for

-- Whether the request comes too late, behind that of a newer hold of the same client: ids are `<client>:<number>`.
local function is_overtaken_by(held)
    local client, number = string.match(ARGV[5], '^(.+):(%d+)$')
    local holder, newer = string.match(held, '^(.+):(%d+)$')
    return client and client == holder and tonumber(number) < tonumber(newer)
end

