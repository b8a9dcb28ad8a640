-- The server's time in epoch ms. Leases and places are measured with the one clock that all
-- clients share.
local server_time = redis.call('TIME')
local now = server_time[1] * 1000 + math.floor(server_time[2] / 1000)

