-- The end of every script that runs on a node of a cluster: runs the script proper, which is the
-- function `run` of its KEYS and ARGV.
local reply = run(keys, args)
if ARGV[1] == '1' and not (type(reply) == 'table' and reply.err) then
    return {reply, unpack(published)}
end
return reply
