-- The server's time in epoch ms. Leases and places are measured with the one clock that all
-- clients share.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

