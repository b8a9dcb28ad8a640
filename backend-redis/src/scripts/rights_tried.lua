-- Tries which commands this user may run from a script, in forms that change nothing. What two of
-- them have to write is deleted before the script ends.
--
-- KEYS  a key that does not exist
-- ARGV  commands, each as the number of its words and the words
-- Reply for each command the error that it has met, or an empty text
local may_delete = type(redis.pcall('DEL', KEYS[1])) == 'number'
local errors, at = {}, 1
while at <= #ARGV do
    local count = tonumber(ARGV[at])
    local command = string.upper(ARGV[at + 1])
    local reply = ''
    if may_delete or (command ~= 'RPUSH' and command ~= 'DECR') then
        reply = redis.pcall(unpack(ARGV, at + 1, at + count))
    end
    if may_delete then
        redis.call('DEL', KEYS[1])
    end
    errors[#errors + 1] = type(reply) == 'table' and reply.err or ''
    at = at + count + 1
end
return errors
