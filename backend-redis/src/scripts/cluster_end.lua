end

local reply = run(keys, args)
if ARGV[1] == '1' and not (type(reply) == 'table' and reply.err) then
    return {reply, unpack(published)}
end
return reply
