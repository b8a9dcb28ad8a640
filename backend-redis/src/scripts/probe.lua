-- Reads keys, and publishes a message if there is a channel. Writes nothing.
--
-- KEYS  any number of keys
-- ARGV  1 the channel, or empty
-- Reply the time of the server: seconds, microseconds
for _, key in ipairs(KEYS) do
    redis.call('EXISTS', key)
end
if ARGV[1] ~= '' then
    redis.pcall('PUBLISH', ARGV[1], '0')
end
return redis.call('TIME')
