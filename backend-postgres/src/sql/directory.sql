-- The directory: the names in use, and the records of clients.

-- The records of clients, by their ids. Rows whose `until` has passed count as absent. `put_client`
-- deletes them.
CREATE TABLE lockcore.client (
    id text COLLATE "C" PRIMARY KEY,
    record text NOT NULL,
    until timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

-- The next names in use after `p_after`, in order, and not more than `p_most`.
--
-- Each part has its own limit, and each finds its rows in the order of an index. So a page costs as
-- much as the names in it, however many there are.
CREATE FUNCTION lockcore.names_in_use(p_after text, p_most bigint)
RETURNS TABLE (used_name text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM lockcore.limit_wait();
    RETURN QUERY
        SELECT used.name FROM (
            (SELECT DISTINCT hold.name FROM lockcore.hold
                WHERE hold.name > p_after AND until > v_now ORDER BY hold.name LIMIT p_most)
            UNION
            (SELECT DISTINCT place.name FROM lockcore.place
                WHERE place.name > p_after AND until > v_now ORDER BY place.name LIMIT p_most)
            UNION
            (SELECT semaphore.name FROM lockcore.semaphore
                WHERE semaphore.name > p_after ORDER BY semaphore.name LIMIT p_most)
            UNION
            (SELECT latch.name FROM lockcore.latch
                WHERE latch.name > p_after ORDER BY latch.name LIMIT p_most)
        ) AS used
        ORDER BY used.name LIMIT p_most;
END $$;

-- Writes the record of a client, which lives for `p_lifetime` microseconds, and deletes a few that
-- have ended. It waits for nobody but another request for the same record.
CREATE FUNCTION lockcore.put_client(p_id text, p_record text, p_lifetime bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lockcore.begin_request();
    v_now := clock_timestamp();
    -- At first: whoever waits for its own row has none of others.
    INSERT INTO lockcore.client VALUES (
        p_id, p_record, v_now + p_lifetime * interval '1 microsecond'
    ) ON CONFLICT (id) DO UPDATE SET record = excluded.record, until = excluded.until;
    DELETE FROM lockcore.client WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM lockcore.client
            WHERE until <= v_now AND id <> p_id LIMIT 10 FOR UPDATE SKIP LOCKED
    ));
END $$;

CREATE FUNCTION lockcore.remove_client(p_id text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM lockcore.begin_request();
    DELETE FROM lockcore.client WHERE id = p_id;
END $$;

-- The next records after the one of `p_after`, in the order of their ids, and not more than
-- `p_most`.
CREATE FUNCTION lockcore.clients(p_after text, p_most bigint)
RETURNS TABLE (client_id text, client_record text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
BEGIN
    PERFORM lockcore.limit_wait();
    RETURN QUERY
        SELECT client.id, client.record FROM lockcore.client
            WHERE client.id > p_after AND until > v_now ORDER BY client.id LIMIT p_most;
END $$;

-- The live rows of a name: their kind, the part that identifies them, their number, and their
-- remaining time in microseconds.
CREATE FUNCTION lockcore.stored(p_name text)
RETURNS TABLE (stored_kind text, stored_part text, stored_number bigint, stored_left bigint)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lockcore.limit_wait();
    v_now := clock_timestamp();
    RETURN QUERY
        SELECT 'hold', id, token, lockcore.microseconds(until - v_now)
            FROM lockcore.hold WHERE name = p_name AND until > v_now
        UNION ALL
        SELECT 'place', '', count(*), lockcore.microseconds(max(until) - v_now)
            FROM lockcore.place WHERE name = p_name AND until > v_now HAVING count(*) > 0
        UNION ALL
        SELECT 'semaphore', '', permits, NULL FROM lockcore.semaphore WHERE name = p_name
        UNION ALL
        SELECT 'latch', '', count, NULL FROM lockcore.latch WHERE name = p_name
        UNION ALL
        SELECT 'waiter', condition, count(*), lockcore.microseconds(max(until) - v_now)
            FROM lockcore.waiter WHERE name = p_name AND until > v_now GROUP BY condition
        UNION ALL
        SELECT 'undone', '', NULL, lockcore.microseconds(max(until) - v_now)
            FROM lockcore.undone WHERE name = p_name AND until > v_now HAVING count(*) > 0
        UNION ALL
        SELECT 'reply', '', NULL, lockcore.microseconds(max(until) - v_now)
            FROM lockcore.reply WHERE name = p_name AND until > v_now HAVING count(*) > 0
        UNION ALL
        SELECT 'fence', '', token, NULL FROM lockcore.fence WHERE name = p_name
        UNION ALL
        SELECT 'proposed', '', token, NULL FROM lockcore.proposed WHERE name = p_name;
END $$;
