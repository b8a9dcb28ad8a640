-- Releases the permits of a hold. Uses only commands that work when memory is full; once HDEL has
-- run, the server lets the others go on as well.
--
-- KEYS  1 the counter of available permits
--       2 when each permit ends
--       3 the holds
-- ARGV  1 id of the hold
--       2 channel
-- Reply 1 released, 0 there is no such hold
return end_hold(KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[1]) and 1 or 0
