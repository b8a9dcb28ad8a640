-- On a cluster, cluster_begin.lua says whether a slot moves.
local function is_moving() return false end

