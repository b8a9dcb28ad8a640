-- What keeps the store in order.

-- Deletes rows that have ended, unless somebody has done so within the last `p_pause` microseconds.
-- It waits for nobody: what somebody is just writing is left for the next time. A table that is
-- locked is waited for for a moment.
--
-- Answers: 0 it was too early, 1 all is deleted, 2 there may be more. Not more than `p_most` rows
-- of each table go at once, because other requests of the client wait meanwhile.
CREATE FUNCTION lockcore.sweep(p_pause bigint, p_most bigint) RETURNS integer
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_passed bigint;
    v_table text;
    v_deleted bigint;
    v_answer integer := 1;
BEGIN
    PERFORM set_config('lock_timeout', '100ms', true);
    IF (SELECT at > v_now - p_pause * interval '1 microsecond' AND at <= v_now FROM lockcore.swept)
        OR NOT pg_try_advisory_xact_lock(1819239276, hashtext('lockcore.swept'))
    THEN
        RETURN 0;
    END IF;
    PERFORM set_config('synchronous_commit', 'off', true);
    UPDATE lockcore.swept SET at = v_now;
    FOREACH v_table IN ARRAY ARRAY['hold', 'place', 'undone', 'reply', 'waiter'] LOOP
        EXECUTE format(
            'DELETE FROM lockcore.%1$I WHERE ctid = ANY (ARRAY(
                SELECT ctid FROM lockcore.%1$I WHERE until <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED
            ))',
            v_table
        ) USING v_now, p_most;
        GET DIAGNOSTICS v_deleted = ROW_COUNT;
        IF v_deleted >= p_most THEN
            v_answer := 2;
        END IF;
    END LOOP;
    -- After a failover, the sequence is raised to the clock, and may be raised to no more.
    SELECT least(last_value, lockcore.clock()) INTO v_passed FROM lockcore.token;
    DELETE FROM lockcore.proposed WHERE name = ANY (ARRAY(
        SELECT name FROM lockcore.proposed WHERE token < v_passed
            LIMIT p_most FOR UPDATE SKIP LOCKED
    ));
    GET DIAGNOSTICS v_deleted = ROW_COUNT;
    IF v_deleted >= p_most THEN
        v_answer := 2;
    END IF;
    RETURN v_answer;
END $$;

-- The session that carries this out: its process, when it began, in microseconds, and under which
-- name; and a text that tells the server from every other one. It changes when the server is
-- started, since its files may be others then, and when the database or the tables are.
CREATE FUNCTION lockcore.session(
    OUT process integer, OUT began bigint, OUT application text, OUT server text
)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    SELECT concat_ws(' ', system_identifier, oid, 'lockcore.hold'::regclass::oid,
            extract(epoch FROM pg_postmaster_start_time()))
        INTO server
        FROM pg_control_system(), pg_database WHERE datname = current_database();
    -- A session is shown to the role that has connected. Another one may have been set.
    PERFORM set_config('role', 'none', true);
    SELECT pid, round(extract(epoch FROM backend_start) * 1000000)::bigint, application_name
        INTO process, began, application
        FROM pg_stat_activity WHERE pid = pg_backend_pid();
END $$;

-- Ends the lost session of a client, if it is still there, with the request that it carries out.
-- Answers whether it is gone. Only then may another one take its place: its requests must not come
-- after those of the new one.
--
-- A pooler may have given the session to another client, which has another name.
CREATE FUNCTION lockcore.end_session(p_process integer, p_began bigint, p_application text)
RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_end timestamptz := clock_timestamp() + interval '2 seconds';
BEGIN
    PERFORM set_config('role', 'none', true);
    LOOP
        PERFORM pg_stat_clear_snapshot();
        PERFORM FROM pg_stat_activity
            WHERE pid = p_process AND pid <> pg_backend_pid()
                AND round(extract(epoch FROM backend_start) * 1000000)::bigint = p_began
                AND application_name = p_application AND usename = session_user;
        IF NOT FOUND THEN
            RETURN true;
        END IF;
        -- The right to do that is needed only here, if the session still exists.
        PERFORM pg_terminate_backend(p_process);
        IF clock_timestamp() > v_end THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(0.005);
    END LOOP;
END $$;

-- Ends the other sessions of the client, which have these names.
CREATE FUNCTION lockcore.end_sessions(p_applications text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_process integer;
BEGIN
    PERFORM set_config('role', 'none', true);
    FOR v_process IN SELECT pid FROM pg_stat_activity
        WHERE application_name = ANY (p_applications) AND pid <> pg_backend_pid()
            AND usename = session_user
    LOOP
        PERFORM pg_terminate_backend(v_process);
    END LOOP;
END $$;
