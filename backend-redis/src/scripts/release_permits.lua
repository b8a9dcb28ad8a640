-- Gives back the permits of a hold. Uses no command that fails when memory is full: what has begun with HDEL is let go on.
--
-- KEYS  1 the number of permits  2 when each ends  3 the book
-- ARGV  1 id of the hold  2 channel
-- Reply 1 released  0 there is no such hold
return give_up(KEYS[1], KEYS[2], KEYS[3], ARGV[2], ARGV[1]) and 1 or 0
