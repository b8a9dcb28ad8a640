-- Whether a key that is not here may be at another node. On a cluster, this function is taken out,
-- and cluster_begin.lua has another one.
local function is_moving() return false end

