-- What keeps the store in order.

-- Deletes rows that have ended, unless somebody has done so within the last `p_pause` microseconds.
-- It waits for nobody: what somebody is just writing is left for the next time.
--
-- Answers: 0 it was too early, 1 all is deleted, 2 there may be more. Not more than `p_most` rows of
-- each table go at once, because other requests of the client wait meanwhile.
CREATE FUNCTION lockcore.sweep(p_pause bigint, p_most bigint) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_passed bigint;
    v_table text;
    v_deleted bigint;
    v_answer integer := 1;
BEGIN
    IF (SELECT at > v_now - p_pause * interval '1 microsecond' AND at <= v_now FROM lockcore.swept)
        OR NOT pg_try_advisory_xact_lock(1819239276, 2)
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

-- Ends a lost connection of this client at the server, if it is still there, with the request that
-- it carries out. Answers whether it is gone. Only then may another connection take its place: its
-- requests must not come after those of the new one.
CREATE FUNCTION lockcore.end_connection(p_application text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_end timestamptz := clock_timestamp() + interval '2 seconds';
BEGIN
    LOOP
        PERFORM pg_stat_clear_snapshot();
        PERFORM pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE application_name = p_application AND usename = current_user
                AND pid <> pg_backend_pid();
        IF NOT FOUND THEN
            RETURN true;
        END IF;
        IF clock_timestamp() > v_end THEN
            RETURN false;
        END IF;
        PERFORM pg_sleep(0.005);
    END LOOP;
END $$;
