-- Ends of holds, and their renewal.

-- Grants a free fair lock to the first in the queue, if its last request said how it would hear of
-- that, and if no fenced transaction is under way: it can be one of who releases, who waits for
-- this. The hold takes the place of the waiter, and ends with it.
CREATE FUNCTION lockcore.grant_directly(p_name text, p_now timestamptz, p_channel text)
RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_first record;
    v_token bigint;
BEGIN
    IF EXISTS (SELECT FROM lockcore.hold WHERE name = p_name AND until > p_now) THEN
        RETURN false;
    END IF;
    SELECT id, owner, request, until INTO v_first FROM lockcore.place
        WHERE name = p_name AND kind = 1 AND until > p_now ORDER BY number LIMIT 1;
    IF v_first.request IS NULL
        OR NOT pg_try_advisory_xact_lock(1819239277, hashtext('lockcore.' || p_name))
    THEN
        RETURN false;
    END IF;
    DELETE FROM lockcore.place WHERE name = p_name AND id = v_first.id;
    DELETE FROM lockcore.hold WHERE name = p_name AND until <= p_now;
    v_token := lockcore.tokens_of(p_name, NULL, 1);
    INSERT INTO lockcore.hold
        VALUES (p_name, v_first.id, v_first.owner, 1, 2, 1, 0, 0, v_token, v_first.until);
    PERFORM lockcore.pass_fence(p_name, v_token);
    PERFORM pg_notify(p_channel, format('grant %s %s %s', v_token, v_first.request, v_first.id));
    RETURN true;
END $$;

-- Grants the lock to the first in the queue, if that may be, or else wakes. Answers whether it has
-- granted.
CREATE FUNCTION lockcore.pass_on(
    p_name text, p_grants boolean, p_now timestamptz, p_channel text
) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    IF p_grants THEN
        IF lockcore.grant_directly(p_name, p_now, p_channel) THEN
            RETURN true;
        END IF;
    END IF;
    PERFORM lockcore.wake(p_name, p_now, p_channel);
    RETURN false;
END $$;

-- Answers: 0 the hold is over, 1 it goes on with the count, 2 there is no such hold.
--
-- `p_undo` says that an acquisition of the hold may still be on its way: over a connection that was
-- lost, or a server that was slow. It must not come about after this was answered.
CREATE FUNCTION lockcore.release(
    p_name text, p_id text, p_remaining bigint, p_undo boolean, p_channel text
) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter(p_name);
    v_mode integer;
    v_until timestamptz;
    v_granted boolean := false;
    v_answer integer := 2;
BEGIN
    IF p_remaining > 0 THEN
        UPDATE lockcore.hold SET count = p_remaining
            WHERE name = p_name AND id = p_id AND until > v_now;
        IF FOUND THEN
            v_answer := 1;
        END IF;
    ELSIF p_undo THEN
        INSERT INTO lockcore.undone VALUES (p_name, p_id, v_now + interval '1 minute')
            ON CONFLICT (name, id) DO UPDATE SET until = excluded.until;
    END IF;
    -- Without the hold, there may be a place, whatever count is to remain.
    IF v_answer = 2 THEN
        DELETE FROM lockcore.hold WHERE name = p_name AND id = p_id
            RETURNING mode, until INTO v_mode, v_until;
        IF v_until > v_now THEN
            v_answer := 0;
            v_granted := lockcore.pass_on(p_name, v_mode = 2, v_now, p_channel);
        ELSE
            DELETE FROM lockcore.place WHERE name = p_name AND id = p_id
                RETURNING until INTO v_until;
            IF v_until > v_now THEN
                v_granted := lockcore.pass_on(p_name, true, v_now, p_channel);
            END IF;
        END IF;
    END IF;
    -- A release that a crash of the server takes back leaves a hold that ends with its lease. It
    -- need not wait for the disk: what comes after it does, and makes it last as well. A grant must
    -- wait, and a mark that keeps a late request out.
    IF NOT p_undo AND NOT v_granted THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN v_answer;
END $$;

-- Frees the name, and answers whether it was held. NULL: it is a latch.
CREATE FUNCTION lockcore.force_release(p_name text, p_channel text) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter(p_name);
    v_was_held boolean;
BEGIN
    IF EXISTS (SELECT FROM lockcore.latch WHERE name = p_name) THEN
        RETURN NULL;
    END IF;
    WITH gone AS (DELETE FROM lockcore.hold WHERE name = p_name RETURNING until)
    SELECT coalesce(bool_or(until > v_now), false) INTO v_was_held FROM gone;
    PERFORM lockcore.wake(p_name, v_now, p_channel);
    RETURN v_was_held;
END $$;

-- Renews a hold, and answers whether it was there.
CREATE FUNCTION lockcore.renew(p_name text, p_id text, p_lease bigint) RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := lockcore.enter(p_name);
BEGIN
    UPDATE lockcore.hold SET until = greatest(until, v_now + p_lease * interval '1 microsecond')
        WHERE name = p_name AND id = p_id AND until > v_now;
    RETURN FOUND;
END $$;

-- Renews many holds, and answers for each whether it was there. It waits for nobody: NULL says that
-- another request is busy with the name, or somebody with the row. One slow request would else keep
-- the other holds from being renewed, and each of them would keep others waiting.
CREATE FUNCTION lockcore.renew_many(p_names text[], p_ids text[], p_leases bigint[])
RETURNS boolean[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_name text;
    v_entered text[] := '{}';
    v_now timestamptz;
    v_renewed boolean[];
BEGIN
    PERFORM lockcore.begin_request();
    FOR v_name IN SELECT DISTINCT name FROM unnest(p_names) AS name LOOP
        IF pg_try_advisory_xact_lock(1819239275, hashtext('lockcore.' || v_name)) THEN
            v_entered := v_entered || v_name;
        END IF;
    END LOOP;
    v_now := clock_timestamp();
    WITH asked AS (
        SELECT name, id, max(lease) AS lease
            FROM unnest(p_names, p_ids, p_leases) AS request (name, id, lease)
            WHERE name = ANY (v_entered) GROUP BY name, id
    ), there AS MATERIALIZED (
        SELECT held.name, held.id FROM lockcore.hold AS held JOIN asked USING (name, id)
            WHERE held.until > v_now
    ), free AS MATERIALIZED (
        SELECT held.name, held.id FROM lockcore.hold AS held JOIN asked USING (name, id)
            WHERE held.until > v_now FOR UPDATE OF held SKIP LOCKED
    ), renewed AS (
        UPDATE lockcore.hold AS held
            SET until = greatest(until, v_now + asked.lease * interval '1 microsecond')
            FROM asked JOIN free USING (name, id)
            WHERE held.name = asked.name AND held.id = asked.id
    )
    SELECT array_agg(
        CASE
            WHEN free.id IS NOT NULL THEN true
            WHEN there.id IS NULL AND request.name = ANY (v_entered) THEN false
        END ORDER BY request.number
    ) INTO v_renewed
        FROM unnest(p_names, p_ids) WITH ORDINALITY AS request (name, id, number)
            LEFT JOIN there USING (name, id) LEFT JOIN free USING (name, id);
    RETURN v_renewed;
END $$;

-- Holders (0), those who wait (1) and the number of permits that was set (2).
CREATE FUNCTION lockcore.inspect(p_name text) RETURNS TABLE (
    what integer, owner text, mode integer, count bigint, permits bigint, most bigint,
    remaining bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    PERFORM lockcore.limit_wait();
    v_now := clock_timestamp();
    RETURN QUERY
        WITH found AS (
            SELECT 0 AS what, owner, mode, count, permits, most, until, token AS number
                FROM lockcore.hold WHERE name = p_name
            UNION ALL
            SELECT 1, owner, 0, 0, 0, 0, until, number FROM lockcore.place WHERE name = p_name
            UNION ALL
            SELECT 2, '', 0, 0, permits, permits, 'infinity', 0
                FROM lockcore.semaphore WHERE name = p_name
        )
        SELECT what, owner, mode, count, permits, most,
            CASE what WHEN 2 THEN 0 ELSE lockcore.microseconds(until - v_now) END
            FROM found WHERE until > v_now ORDER BY what, number;
END $$;
