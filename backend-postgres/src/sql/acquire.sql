-- Taking a hold.

-- When the holds end that are in the way, if any are.
CREATE FUNCTION lockcore.blocked_until(
    p_name text, p_owner text, p_mode integer, p_within text, p_free bigint, p_permits bigint,
    p_now timestamptz
) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz;
BEGIN
    IF p_mode IN (1, 2) THEN
        SELECT max(until) INTO v_until FROM lockcore.hold
            WHERE name = p_name AND until > p_now AND owner <> p_owner;
    ELSIF p_mode IN (5, 6) THEN
        IF p_free < p_permits THEN
            SELECT min(until) INTO v_until FROM lockcore.hold
                WHERE name = p_name AND until > p_now;
        END IF;
    -- A named owner takes over its own hold, whatever else is there.
    ELSIF EXISTS (
        SELECT FROM lockcore.hold
            WHERE name = p_name AND until > p_now AND owner = p_owner AND mode = p_mode
    ) THEN
        RETURN NULL;
    ELSIF p_mode = 3 THEN
        SELECT max(until) INTO v_until FROM lockcore.hold
            WHERE name = p_name AND until > p_now AND mode = 4 AND id IS DISTINCT FROM p_within;
    ELSE
        SELECT max(until) INTO v_until FROM lockcore.hold WHERE name = p_name AND until > p_now;
    END IF;
    RETURN v_until;
END $$;

-- When the places end of those who come first, if the lock is free and anybody does.
CREATE FUNCTION lockcore.turn_blocked_until(
    p_name text, p_id text, p_owner text, p_mode integer, p_now timestamptz
) RETURNS timestamptz
LANGUAGE plpgsql AS $$
DECLARE
    v_first record;
    v_until timestamptz;
BEGIN
    IF p_mode = 2 THEN
        SELECT id, until INTO v_first FROM lockcore.place
            WHERE name = p_name AND until > p_now ORDER BY number LIMIT 1;
        -- An owner that takes over its own hold has not got to wait for its turn.
        IF v_first.id <> p_id AND NOT EXISTS (
            SELECT FROM lockcore.hold WHERE name = p_name AND until > p_now
        ) THEN
            v_until := v_first.until;
        END IF;
    ELSIF p_mode = 3 AND NOT EXISTS (
        -- Neither an owner that reads already nor a reader beside a writer waits for writers.
        SELECT FROM lockcore.hold
            WHERE name = p_name AND until > p_now AND (mode = 4 OR owner = p_owner)
    ) THEN
        SELECT max(until) INTO v_until FROM lockcore.place WHERE name = p_name AND until > p_now;
    END IF;
    RETURN v_until;
END $$;

-- Answers: 0 it is held, `number` is its token; 1 refused for `number` microseconds; 2 the hold
-- that should grow is gone; 3 there are only `number` permits; 4 the name is in use as kind
-- `number`; 5 the request was undone before it came; 6 it is late, and `number` is the clock; 7 the
-- lock is free but for a fenced transaction, and the request is refused as with 1.
CREATE FUNCTION lockcore.acquire(
    p_name text, p_id text, p_owner text, p_mode integer, p_lease bigint, p_count bigint,
    p_queue bigint, p_within text, p_tokens bigint, p_permits bigint, p_most bigint,
    p_request bigint, p_least bigint, p_channel text, p_asked bigint,
    OUT answer integer, OUT number bigint
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_kind integer := (ARRAY[1, 1, 2, 2, 3, 4])[p_mode];
    v_total bigint := 0;
    v_free bigint := 0;
    v_now timestamptz;
    v_until timestamptz;
    v_blocked timestamptz;
    v_told timestamptz;
    v_used integer;
    v_refused integer := 1;
    v_takes_over boolean := false;
    v_is_beside boolean := false;
    v_passes bigint;
BEGIN
    -- A refusal changes nothing, and needs no turn: the hold was there when this looked.
    IF p_mode = 1 THEN
        PERFORM lockcore.limit_wait();
        SELECT until INTO v_blocked FROM lockcore.hold
            WHERE name = p_name AND kind = 1 AND owner <> p_owner AND until > clock_timestamp();
        IF FOUND THEN
            answer := 1;
            number := greatest(lockcore.microseconds(v_blocked - clock_timestamp()), 0);
            RETURN;
        END IF;
    END IF;

    v_now := lockcore.enter(p_name);
    v_until := v_now + p_lease * interval '1 microsecond';
    v_used := lockcore.used_as(p_name, v_now);
    IF v_used <> v_kind THEN
        answer := 4;
        number := v_used;
        RETURN;
    END IF;

    -- Before it lets a hold grow, which may have been made smaller since.
    IF lockcore.is_late(p_asked, v_now) THEN
        answer := 6;
        number := lockcore.clock();
        RETURN;
    END IF;
    UPDATE lockcore.hold AS held SET count = p_count, until = greatest(until, v_until)
        WHERE name = p_name AND id = p_id AND until > v_now RETURNING token INTO number;
    IF FOUND THEN
        answer := 0;
        RETURN;
    END IF;
    IF EXISTS (
        SELECT FROM lockcore.undone WHERE name = p_name AND id = p_id AND until > v_now
    ) THEN
        answer := 5;
        RETURN;
    END IF;

    IF v_kind IN (3, 4) THEN
        SELECT total, free INTO v_total, v_free FROM lockcore.permits(p_name, p_most, v_now);
        IF v_total < p_permits THEN
            answer := 3;
            number := v_total;
            RETURN;
        END IF;
    END IF;
    v_blocked := lockcore.blocked_until(
        p_name, p_owner, p_mode, p_within, v_free, p_permits, v_now
    );
    IF v_blocked IS NULL AND p_count > 1 THEN
        answer := 2;
        RETURN;
    END IF;
    IF v_blocked IS NULL THEN
        v_blocked := lockcore.turn_blocked_until(p_name, p_id, p_owner, p_mode, v_now);
    END IF;
    IF v_blocked IS NULL THEN
        -- Whoever has permits takes nothing over, and neither does a reader beside others, unless
        -- one of them is a writer that has gone on as a reader.
        IF p_mode IN (1, 2, 4) THEN
            v_takes_over := true;
        ELSIF p_mode = 3 THEN
            SELECT coalesce(bool_or(mode = 4), false), coalesce(bool_or(is_writers), true)
                INTO v_is_beside, v_takes_over
                FROM lockcore.hold WHERE name = p_name AND until > v_now;
            v_takes_over := v_takes_over AND NOT v_is_beside;
        END IF;
        IF v_takes_over AND NOT lockcore.close_fence(p_name) THEN
            -- Nobody tells a waiter when the transaction ends. It asks again.
            v_refused := 7;
            v_blocked := v_now + interval '250 milliseconds';
        END IF;
    END IF;
    IF v_blocked IS NOT NULL THEN
        IF p_queue IS NOT NULL THEN
            PERFORM lockcore.queue(p_name, p_id, p_owner, p_mode, p_queue, p_request, v_now);
        END IF;
        answer := v_refused;
        number := lockcore.microseconds(v_blocked - v_now);
        RETURN;
    END IF;

    IF v_takes_over THEN
        -- The fence may have taken a part of the lease.
        v_until := clock_timestamp() + p_lease * interval '1 microsecond';
    END IF;
    -- Whoever was refused because of what the hold replaces was told when that ends.
    DELETE FROM lockcore.place WHERE name = p_name AND id = p_id RETURNING until INTO v_told;
    WITH gone AS (
        DELETE FROM lockcore.hold
            WHERE name = p_name AND (
                until <= v_now
                OR owner = p_owner AND (v_kind = 1 OR v_kind = 2 AND mode = p_mode)
            )
            RETURNING until
    )
    SELECT greatest(v_told, max(until)) INTO v_told FROM gone;
    number := lockcore.tokens_of(p_name, p_least, p_tokens);
    INSERT INTO lockcore.hold VALUES (
        p_name, p_id, p_owner, v_kind, p_mode, 1, p_permits, v_total, number, v_until, v_is_beside
    );
    IF v_takes_over THEN
        v_passes := number;
        IF p_mode = 3 THEN
            UPDATE lockcore.hold SET is_writers = false WHERE name = p_name AND is_writers;
            -- The readers beside it stay valid, except those that a writer has come after.
            SELECT coalesce(min(token), number) INTO v_passes FROM lockcore.hold
                WHERE name = p_name AND until > v_now AND token >= coalesce(
                    (SELECT token FROM lockcore.fence WHERE name = p_name), 0
                );
        ELSIF EXISTS (SELECT FROM lockcore.hold WHERE name = p_name AND is_writers) THEN
            -- A reader beside the replaced writer has an earlier token, and may outlast this hold.
            -- Whoever reads beside it then has to pass this token, checked before or not.
            INSERT INTO lockcore.fence VALUES (p_name, number) ON CONFLICT (name) DO NOTHING;
        END IF;
        PERFORM lockcore.pass_fence(p_name, v_passes);
    END IF;
    IF v_told > v_until THEN
        PERFORM lockcore.wake(p_name, v_now, p_channel);
    END IF;
    answer := 0;
END $$;

-- Gives a refused hold a place at the end of the queue, or keeps the one that it has. A writer that
-- was refused because of another writer keeps nobody out.
CREATE FUNCTION lockcore.queue(
    p_name text, p_id text, p_owner text, p_mode integer, p_queue bigint, p_request bigint,
    p_now timestamptz
) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF p_mode NOT IN (2, 4) OR p_mode = 4 AND EXISTS (
        SELECT FROM lockcore.hold WHERE name = p_name AND until > p_now AND mode = 4
    ) THEN
        RETURN;
    END IF;
    DELETE FROM lockcore.place WHERE name = p_name AND id = p_id AND until <= p_now;
    INSERT INTO lockcore.place (name, id, owner, kind, request, until)
        VALUES (
            p_name, p_id, p_owner, p_mode / 2, p_request,
            p_now + p_queue * interval '1 microsecond'
        )
        ON CONFLICT (name, id) DO UPDATE SET request = excluded.request, until = excluded.until;
END $$;
