-- Asks which commands this user may run, and changes nothing.
--
-- ARGV  commands, each as the number of its words and the words
-- Reply for each command the error that it would meet, or an empty text; nothing at all from a
--       server that cannot be asked (before Redis 7.0)
if not redis.acl_check_cmd then
    return false
end
local errors, at = {}, 1
while at <= #ARGV do
    local count = tonumber(ARGV[at])
    local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(ARGV, at + 1, at + count))
    if not is_known then
        errors[#errors + 1] = 'unknown command'
    elseif is_allowed then
        errors[#errors + 1] = ''
    else
        errors[#errors + 1] = 'NOPERM'
    end
    at = at + count + 1
end
return errors
