-- Forgets the record of a client.
--
-- KEYS  1 the ids of all clients
--       2 the record
-- ARGV  1 id of the client
-- Reply 1 if there was a record, else 0
redis.call('ZREM', KEYS[1], ARGV[1])
return redis.call('DEL', KEYS[2])
