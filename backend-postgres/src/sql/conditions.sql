-- The waiters of conditions.

-- Stands for a condition where a name is asked for. A lock of the same name does no harm: they wait
-- for each other's requests, and ids are different anyway.
CREATE FUNCTION lockcore.both(p_name text, p_condition text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT p_name || chr(10) || p_condition
$$;

CREATE FUNCTION lockcore.enter_condition(p_name text, p_condition text) RETURNS timestamptz
LANGUAGE sql AS $$
    SELECT lockcore.enter(lockcore.both(p_name, p_condition))
$$;

-- Queues a waiter, or keeps the place that it has. Answers: 0 it has a place; 5 it has left before
-- this came; 6 this is late, and `number` is the clock.
CREATE FUNCTION lockcore.join_condition(
    p_name text, p_condition text, p_id text, p_keep bigint, p_asked bigint,
    OUT answer integer, OUT number bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter_condition(p_name, p_condition);
BEGIN
    IF EXISTS (
        SELECT FROM lockcore.undone
            WHERE name = lockcore.both(p_name, p_condition) AND id = p_id AND until > v_now
    ) THEN
        answer := 5;
        RETURN;
    END IF;
    IF lockcore.is_late(p_asked, v_now) THEN
        answer := 6;
        number := lockcore.clock();
        RETURN;
    END IF;
    DELETE FROM lockcore.waiter
        WHERE name = p_name AND condition = p_condition AND id = p_id AND until <= v_now;
    INSERT INTO lockcore.waiter (name, condition, id, until)
        VALUES (p_name, p_condition, p_id, v_now + p_keep * interval '1 microsecond')
        ON CONFLICT (name, condition, id) DO UPDATE SET until = excluded.until;
    answer := 0;
END $$;

-- Keeps a place, and answers whether there is one.
CREATE FUNCTION lockcore.stay_in_condition(
    p_name text, p_condition text, p_id text, p_keep bigint
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter_condition(p_name, p_condition);
BEGIN
    UPDATE lockcore.waiter SET until = v_now + p_keep * interval '1 microsecond'
        WHERE name = p_name AND condition = p_condition AND id = p_id AND until > v_now;
    RETURN FOUND;
END $$;

-- Notifies the first waiters, at most so many, and answers how many there were. To be called when
-- the condition was entered.
CREATE FUNCTION lockcore.notify_first(
    p_name text, p_condition text, p_most bigint, p_now timestamptz, p_channel text
) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_notified bigint;
BEGIN
    WITH notified AS (
        DELETE FROM lockcore.waiter
            WHERE name = p_name AND condition = p_condition AND id IN (
                SELECT id FROM lockcore.waiter
                    WHERE name = p_name AND condition = p_condition AND until > p_now
                    ORDER BY number LIMIT p_most
            )
            RETURNING id
    )
    SELECT count(pg_notify(p_channel, 'first ' || id)) INTO v_notified FROM notified;
    RETURN v_notified;
END $$;

CREATE FUNCTION lockcore.notify_condition(
    p_name text, p_condition text, p_most bigint, p_channel text
) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter_condition(p_name, p_condition);
BEGIN
    RETURN lockcore.notify_first(p_name, p_condition, p_most, v_now, p_channel);
END $$;

-- Removes a waiter, and answers whether it was in the queue. If it was not, it was notified, and
-- `p_passes_on` says that the next one is to be notified instead.
CREATE FUNCTION lockcore.leave_condition(
    p_name text, p_condition text, p_id text, p_passes_on boolean, p_channel text
) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter_condition(p_name, p_condition);
    v_until timestamptz;
BEGIN
    DELETE FROM lockcore.waiter WHERE name = p_name AND condition = p_condition AND id = p_id
        RETURNING until INTO v_until;
    IF v_until > v_now THEN
        RETURN true;
    END IF;
    -- It was notified, or nothing was heard of its joining, which may still be on its way.
    INSERT INTO lockcore.undone
        VALUES (lockcore.both(p_name, p_condition), p_id, v_now + interval '1 minute')
        ON CONFLICT (name, id) DO UPDATE SET until = excluded.until;
    IF p_passes_on THEN
        PERFORM lockcore.notify_first(p_name, p_condition, 1, v_now, p_channel);
    END IF;
    RETURN false;
END $$;
