-- What the functions of all kinds of locks begin and end with.

-- Prepares the transaction of a request.
--
-- A statement of a function sees what was committed before it began, but only in the isolation
-- level that is checked here.
CREATE FUNCTION lockcore.begin_request() RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'locks need the isolation level READ COMMITTED, not %',
            upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'LC002';
    END IF;
    -- What is answered has to outlast a crash: a lost hold could be granted twice, with one token.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;
    PERFORM lockcore.limit_wait();
END $$;

-- Limits the next wait to what is left of 2 s since the statement began, or of less if the client
-- waits for less (`with_patience`), and to `p_most` milliseconds. It is called before each one. All
-- waits of a request together take no longer than that: other requests wait behind it on its
-- connection, renewals included.
CREATE FUNCTION lockcore.limit_wait(p_most integer DEFAULT 2000) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_passed numeric := 1000 * extract(epoch FROM clock_timestamp() - statement_timestamp());
    v_patience numeric := coalesce(nullif(current_setting('locks.patience', true), ''), '2000');
    -- A clock that was set back would allow for more, and no limit at all is what 0 means.
    v_left numeric := least(greatest(v_patience - ceil(v_passed), 1), v_patience, p_most);
BEGIN
    PERFORM set_config('lock_timeout', v_left || 'ms', true);
END $$;

-- Limits all waits of the request whose parameter this is to so many milliseconds together, and
-- returns the parameter.
CREATE FUNCTION lockcore.with_patience(p_parameter anyelement, p_milliseconds integer)
RETURNS anyelement
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM set_config('locks.patience', p_milliseconds::text, true);
    RETURN p_parameter;
END $$;

-- Waits for its turn among all requests for the name, until the end of the transaction, and returns
-- the time. The time and all that is read have to come after that: what is decided is decided in
-- one order.
--
-- The schema is a part of what is locked here and elsewhere: another one in the same database has
-- other locks of the same names.
CREATE FUNCTION lockcore.enter(p_name text) RETURNS timestamptz
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lockcore.begin_request();
    PERFORM pg_advisory_xact_lock(1819239275, hashtext('lockcore.' || p_name));
    RETURN clock_timestamp();
END $$;

-- Whether a request may be older than a mark that keeps it out. `p_asked` is a time of this clock at
-- which the request was not sent yet, as its client has reckoned it.
--
-- A mark is kept for a minute from the time at which it was set, and that was after the request was
-- sent. So a request that is not late meets its mark, also if the client reckons wrong by as much as
-- 30 s. One that says that it comes from the future shows that it does.
CREATE FUNCTION lockcore.is_late(p_asked bigint, p_now timestamptz) RETURNS boolean
LANGUAGE sql AS $$
    SELECT (
        p_now BETWEEN to_timestamp(p_asked / 1000000.0) - interval '1 second'
            AND to_timestamp(p_asked / 1000000.0) + interval '30 seconds'
    ) IS NOT TRUE
$$;

-- The kind that the name is in use as, if it is in use.
CREATE FUNCTION lockcore.used_as(p_name text, p_now timestamptz) RETURNS integer
LANGUAGE sql AS $$
    SELECT coalesce(
        (SELECT kind FROM lockcore.hold WHERE name = p_name AND until > p_now LIMIT 1),
        (SELECT kind FROM lockcore.place WHERE name = p_name AND until > p_now LIMIT 1),
        (SELECT 3 FROM lockcore.semaphore WHERE name = p_name),
        (SELECT 5 FROM lockcore.latch WHERE name = p_name)
    )
$$;

CREATE FUNCTION lockcore.microseconds(p_time interval) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT ceil(extract(epoch FROM p_time) * 1000000)::bigint
$$;

-- Wakes those who wait for the name. Of those who wait for a fair lock, the first in the queue is
-- meant, if there is a queue.
CREATE FUNCTION lockcore.wake(p_name text, p_now timestamptz, p_channel text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_first text;
BEGIN
    SELECT id INTO v_first FROM lockcore.place
        WHERE name = p_name AND kind = 1 AND until > p_now ORDER BY number LIMIT 1;
    PERFORM pg_notify(p_channel, coalesce('first ' || v_first, 'all'));
END $$;

-- The first of so many new tokens, drawn while the name is the request's: a later grant of the name
-- draws a later number.
CREATE FUNCTION lockcore.draw_tokens(p_tokens bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
BEGIN
    -- A pooler may have changed the server behind a connection that is still open.
    IF NOT lockcore.knows_server() THEN
        PERFORM lockcore.follow_server();
    END IF;
    -- Nobody may raise the sequence between what is read there and what is written.
    PERFORM lockcore.limit_wait();
    PERFORM pg_advisory_xact_lock_shared(1819239276, hashtext('lockcore.token'));
    IF p_tokens <= 64 THEN
        RETURN nextval('lockcore.token');
    END IF;
    -- Others draw in between. What is drawn last is far enough from what is drawn first.
    SELECT min(nextval('lockcore.token')) INTO v_first
        FROM generate_series(1, (p_tokens + 63) / 64);
    RETURN v_first;
END $$;

-- The first of so many new tokens of the name, `p_least` or a greater one. The name was entered.
CREATE FUNCTION lockcore.tokens_of(p_name text, p_least bigint, p_tokens bigint) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
    v_last bigint;
BEGIN
    -- Before the draw: if the note is just being deleted, what is drawn afterwards is greater. And
    -- whoever has drawn keeps others from raising the sequence, and must not wait for a row.
    PERFORM lockcore.limit_wait();
    SELECT token INTO v_last FROM lockcore.proposed WHERE name = p_name FOR UPDATE;
    v_first := lockcore.draw_tokens(p_tokens);
    IF v_last >= v_first OR p_least > v_first THEN
        v_first := greatest(v_last + 1, p_least, v_first);
        PERFORM lockcore.note_token(p_name, v_first + p_tokens - 1);
    END IF;
    RETURN v_first;
END $$;

-- Makes all later tokens of the name greater than `p_token`. The name was entered.
CREATE FUNCTION lockcore.note_token(p_name text, p_token bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM lockcore.limit_wait();
    INSERT INTO lockcore.proposed AS noted VALUES (p_name, p_token)
        ON CONFLICT (name) DO UPDATE SET token = greatest(noted.token, excluded.token);
END $$;

CREATE FUNCTION lockcore.raise_token(p_name text, p_token bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM lockcore.enter(p_name);
    PERFORM lockcore.note_token(p_name, p_token);
END $$;

-- Makes all later tokens of all names greater than `p_least`.
CREATE FUNCTION lockcore.raise_tokens(p_least bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT last_value FROM lockcore.token) < p_least THEN
        -- Whoever comes now waits behind this, which must not wait for a grant that is stuck.
        PERFORM lockcore.limit_wait();
        PERFORM pg_advisory_xact_lock(1819239276, hashtext('lockcore.token'));
        IF (SELECT last_value FROM lockcore.token) < p_least THEN
            PERFORM setval('lockcore.token', p_least);
            UPDATE lockcore.server SET raised = p_least;
        END IF;
    END IF;
END $$;

-- The server's clock in microseconds.
CREATE FUNCTION lockcore.clock() RETURNS bigint
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
    SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Whether the sequence was raised since this server has started with this database.
--
-- The ways back to an older state change one of these: a replica that takes over and a backup of the
-- files have a server that started at another time, a copy of the database has another number, the
-- sequence of a dump that was read in is another one, and one that was set by hand is behind. To
-- read in a dump of the data alone, this table must be emptied first: truncated, it has another
-- file.
CREATE FUNCTION lockcore.knows_server() RETURNS boolean
LANGUAGE sql AS $$
    SELECT EXISTS (
        SELECT FROM lockcore.server
            WHERE started = pg_postmaster_start_time()
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND sequence = 'lockcore.token'::regclass
                AND file = pg_relation_filenode('lockcore.server')
                AND raised <= (SELECT last_value FROM lockcore.token)
    )
$$;

-- Raises the tokens past all that were drawn before, if this is another server now: 67 s past its
-- clock, for the difference between the clocks, and one second past the last one that it knows of,
-- for those that it may not know of: 4,096 grants of the 256 tokens that a busy client asks for. A
-- restart takes about as long. So the tokens do not move away from the clock with each, and an older
-- state that is restored is past them soon. If they are further ahead, the clock was set back or is
-- behind: then they are raised by another 67 s.
CREATE FUNCTION lockcore.follow_server() RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_reserve bigint := 67108864;
    v_second bigint := 1048576;
    v_clock bigint := lockcore.clock();
    v_last bigint;
BEGIN
    IF lockcore.knows_server() THEN
        RETURN;
    END IF;
    PERFORM lockcore.limit_wait();
    PERFORM pg_advisory_xact_lock(1819239276, hashtext('lockcore.token'));
    IF NOT lockcore.knows_server() THEN
        INSERT INTO lockcore.server
            SELECT true, '-infinity', 0, 0, 0, 0 WHERE NOT EXISTS (SELECT FROM lockcore.server);
        SELECT greatest(last_value, raised) INTO v_last FROM lockcore.token, lockcore.server;
        UPDATE lockcore.server SET started = pg_postmaster_start_time(),
            database = (SELECT oid FROM pg_database WHERE datname = current_database()),
            sequence = 'lockcore.token'::regclass,
            file = pg_relation_filenode('lockcore.server'),
            raised = setval('lockcore.token', CASE
                WHEN v_last < v_clock + v_reserve + 16 * v_second
                    THEN greatest(v_clock + v_reserve, v_last + v_second)
                ELSE v_last + v_reserve
            END);
    END IF;
END $$;

-- Raises the tokens to the clock, unless they were just before it already. In a database that is
-- turned back to an older state, they are raised to the clock again, and must not repeat.
CREATE FUNCTION lockcore.raise_tokens_to_clock() RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM lockcore.limit_wait();
    PERFORM lockcore.follow_server();
    IF (SELECT last_value FROM lockcore.token) < lockcore.clock() - 10000000 THEN
        PERFORM lockcore.raise_tokens(lockcore.clock());
    END IF;
END $$;
