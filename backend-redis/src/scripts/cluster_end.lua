-- The end of every script that runs on a node of a cluster: runs the script proper, which is the
-- function `run` of its KEYS and ARGV.
if not is_moving() then
    return run(keys, args)
end
local ok, reply = pcall(run, keys, args)
if not ok and type(reply) == 'string' and string.sub(reply, 1, 9) == 'TRYAGAIN ' then
    return redis.error_reply(reply)
elseif not ok then
    error(reply, 0)
elseif type(reply) == 'table' and reply.err then
    return reply
end
return {reply, unpack(published)}
